use crate::{Dequeued, Op, OpClass, Phase, Scheduler};
use std::collections::VecDeque;

/// First come, first served, except that [`OpClass::Immediate`] goes first.
#[derive(Clone, Debug)]
pub struct Fifo<T> {
    immediate: VecDeque<Op<T>>,
    rest: VecDeque<Op<T>>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Fifo { immediate: VecDeque::new(), rest: VecDeque::new() }
    }
}

impl<T> Scheduler<T> for Fifo<T> {
    fn enqueue(&mut self, op: Op<T>, _: u64) {
        match op.class {
            OpClass::Immediate => self.immediate.push_back(op),
            _ => self.rest.push_back(op),
        }
    }

    fn dequeue(&mut self, _: u64) -> Dequeued<T> {
        if let Some(op) = self.immediate.pop_front() {
            return Dequeued::Item(op, Phase::Strict);
        }
        self.rest.pop_front().map_or(Dequeued::Empty, |op| Dequeued::Item(op, Phase::Weight))
    }

    fn take_out(&mut self, gone: &mut dyn FnMut(&T) -> bool, _: u64) -> Vec<T> {
        let mut out = Vec::new();
        for queue in [&mut self.immediate, &mut self.rest] {
            crate::take_out_of(queue, gone, &mut out);
        }
        out
    }

    fn len(&self) -> usize {
        self.immediate.len() + self.rest.len()
    }
}
