//! The code: which bytes parity has, and how lost shards come back.

use crate::kernel::multiply;
use crate::matrix::{Matrix, Prepared};
use crate::shards::{Shard, ShardSet};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::rc::Rc;
use thiserror::Error;

/// The library that gave a code its generator matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Technique {
    /// Plugin `jerasure`, technique `reed_sol_van`, `w = 8`.
    JerasureReedSolVan,
    /// Plugin `isa`, technique `reed_sol_van`.
    IsaReedSolVan,
    /// Plugin `isa`, technique `cauchy`.
    IsaCauchy,
}

/// Why there is no such code, or it cannot do what is asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodeError {
    /// A code has at least one data shard and one of parity, and a shard's number is one byte.
    #[error(
        "k={k} m={m}: expected at least one data shard, one parity shard and at most {} shards",
        ShardSet::SHARDS_MAX
    )]
    Shape {
        /// Data shards.
        k: usize,
        /// Parity shards.
        m: usize,
    },
    /// Beyond these numbers isa's `reed_sol_van` cannot rebuild all combinations of `m` shards.
    #[error(
        "isa reed_sol_van k={k} m={m}: expected k <= 32, m <= 4, and k <= 21 with m = 4; \
         technique=cauchy takes more"
    )]
    NotSeparable {
        /// Data shards.
        k: usize,
        /// Parity shards.
        m: usize,
    },
    /// Fewer than `k` shards are there.
    #[error("{have:?} are there, and any {k} shards are needed")]
    TooFew {
        /// What is there.
        have: ShardSet,
        /// How many are needed.
        k: usize,
    },
    /// A shard that the code does not have.
    #[error("{shards:?} are not shards of a code with {total}")]
    Unknown {
        /// The shards that do not exist.
        shards: ShardSet,
        /// How many exist.
        total: usize,
    },
}

/// A systematic Reed-Solomon code with `k` data shards and `m` of parity.
#[derive(Clone, Debug)]
pub struct Code {
    technique: Technique,
    k: usize,
    m: usize,
    /// `k + m` rows: what each shard is of the data shards. The first `k` are the identity.
    generator: Matrix,
    parity: Prepared,
}

impl Code {
    /// The code of a technique.
    pub fn new(technique: Technique, k: usize, m: usize) -> Result<Code, CodeError> {
        if k == 0 || m == 0 || k.saturating_add(m) > ShardSet::SHARDS_MAX {
            return Err(CodeError::Shape { k, m });
        }
        let generator = match technique {
            Technique::JerasureReedSolVan => Matrix::jerasure_reed_sol_van(k, m),
            Technique::IsaReedSolVan => {
                if k > 32 || m > 4 || m == 4 && k > 21 {
                    return Err(CodeError::NotSeparable { k, m });
                }
                Matrix::isa_reed_sol_van(k, m)
            }
            Technique::IsaCauchy => Matrix::isa_cauchy(k, m),
        };
        let parity = Prepared::new(&generator.select(k..k + m));
        Ok(Code { technique, k, m, generator, parity })
    }

    /// The library that gave it its matrix.
    pub fn technique(&self) -> Technique {
        self.technique
    }

    /// How many shards hold data.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How many shards hold parity.
    pub fn m(&self) -> usize {
        self.m
    }

    /// All shards.
    pub fn shards(&self) -> ShardSet {
        ShardSet::first(self.k + self.m)
    }

    /// What a byte of a data shard is multiplied with in a parity shard.
    pub fn coefficient(&self, parity: Shard, data: Shard) -> u8 {
        assert!(usize::from(parity) >= self.k && usize::from(data) < self.k, "no such coefficient");
        self.generator.get(parity.into(), data.into())
    }

    /// Computes all parity shards of `k` data shards; all have one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        multiply(&self.parity, data, parity, false);
    }

    /// Changes a parity shard as data shard `data` changed: `delta` is its old bytes XOR its new
    /// ones. Applying the same delta twice takes it back, so that the caller makes sure that each
    /// is applied once.
    pub fn apply_delta(&self, parity: Shard, data: Shard, delta: &[u8], bytes: &mut [u8]) {
        let factor = Prepared::scalar(self.coefficient(parity, data));
        multiply(&factor, &[delta], &mut [bytes], true);
    }

    /// Changes a parity shard as data shards changed from `old` to `new` bytes, in one pass.
    pub fn apply_changes(
        &self,
        parity: Shard,
        changes: &[(Shard, &[u8], &[u8])],
        bytes: &mut [u8],
    ) {
        let row = Matrix::from_fn(1, changes.len() * 2, |_, c| {
            self.coefficient(parity, changes[c / 2].0)
        });
        let sources: SmallVec<[&[u8]; 8]> =
            changes.iter().flat_map(|(_, old, new)| [*old, *new]).collect();
        multiply(&Prepared::new(&row), &sources, &mut [bytes], true);
    }

    /// How to compute the shards of `want` from shards of `have`. Data shards are preferred as
    /// sources, then the first shards of parity.
    pub fn recipe(&self, have: ShardSet, want: ShardSet) -> Result<Recipe, CodeError> {
        let unknown = have.or(want).without(self.shards());
        if !unknown.is_empty() {
            return Err(CodeError::Unknown { shards: unknown, total: self.k + self.m });
        }
        if have.len() < self.k {
            return Err(CodeError::TooFew { have, k: self.k });
        }
        let sources: ShardSet = have.iter().take(self.k).collect();
        let rows = |set: ShardSet| self.generator.select(set.iter().map(usize::from));
        // Any k rows of these generators are independent: `Code::new` refuses shapes without that.
        let inverse = rows(sources).inverse().expect("any k shards determine the data");
        let matrix = Prepared::new(&rows(want).product(&inverse));
        Ok(Recipe { sources, want, matrix })
    }
}

/// Bytes of `a` XOR those of `b`: what changed between them.
pub fn delta(a: &[u8], b: &[u8]) -> Vec<u8> {
    assert_eq!(a.len(), b.len(), "what changed keeps its length");
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

/// How to compute some shards from `k` others.
#[derive(Clone, Debug)]
pub struct Recipe {
    sources: ShardSet,
    want: ShardSet,
    matrix: Prepared,
}

impl Recipe {
    /// The shards to compute from.
    pub fn sources(&self) -> ShardSet {
        self.sources
    }

    /// The shards that are computed.
    pub fn want(&self) -> ShardSet {
        self.want
    }

    /// Computes the wanted shards: sources and outputs in the order of their numbers, all of one
    /// length.
    pub fn apply(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        multiply(&self.matrix, sources, out, false);
    }
}

/// How many recipes are remembered. A recipe of 8+3 takes some 1.7 KiB.
const RECIPES_MAX: usize = 256;

/// Recipes that were in use: inverting a matrix costs more than decoding a small read.
#[derive(Debug)]
pub struct Recipes {
    code: Rc<Code>,
    known: BTreeMap<(ShardSet, ShardSet), (Rc<Recipe>, u64)>,
    uses: u64,
}

impl Recipes {
    /// Without any yet.
    pub fn new(code: Rc<Code>) -> Recipes {
        Recipes { code, known: BTreeMap::new(), uses: 0 }
    }

    /// The code that they are of.
    pub fn code(&self) -> &Rc<Code> {
        &self.code
    }

    /// [`Code::recipe`], remembered.
    pub fn get(&mut self, have: ShardSet, want: ShardSet) -> Result<Rc<Recipe>, CodeError> {
        self.uses += 1;
        if let Some((recipe, used)) = self.known.get_mut(&(have, want)) {
            *used = self.uses;
            return Ok(recipe.clone());
        }
        let recipe = Rc::new(self.code.recipe(have, want)?);
        if self.known.len() >= RECIPES_MAX {
            let oldest = self.known.iter().min_by_key(|(_, (_, used))| *used).map(|(k, _)| *k);
            oldest.and_then(|k| self.known.remove(&k));
        }
        self.known.insert((have, want), (recipe.clone(), self.uses));
        Ok(recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(v: &[Vec<u8>]) -> Vec<&[u8]> {
        v.iter().map(Vec::as_slice).collect()
    }

    fn encoded(code: &Code, length: usize, seed: u8) -> Vec<Vec<u8>> {
        let byte = |s: usize, i: usize| (s * 31 + i * 7 + i / 256) as u8 ^ seed;
        let mut shards: Vec<Vec<u8>> =
            (0..code.k()).map(|s| (0..length).map(|i| byte(s, i)).collect()).collect();
        let mut parity = vec![vec![0; length]; code.m()];
        let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&slices(&shards), &mut out);
        shards.extend(parity);
        shards
    }

    fn codes() -> Vec<Code> {
        let mut codes = Vec::new();
        for (k, m) in [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (6, 3), (5, 4)] {
            for t in [Technique::JerasureReedSolVan, Technique::IsaReedSolVan, Technique::IsaCauchy]
            {
                codes.push(Code::new(t, k, m).unwrap());
            }
        }
        codes
    }

    /// All sets of shards that lack at most `m`.
    fn survivors(code: &Code) -> impl Iterator<Item = ShardSet> + '_ {
        (0..1u128 << (code.k() + code.m()))
            .map(ShardSet::from_bits)
            .filter(|s| s.len() >= code.k())
            .step_by(if cfg!(miri) { 97 } else { 1 })
    }

    #[test]
    fn any_k_shards_give_all_others() {
        for code in codes() {
            let shards = encoded(&code, if cfg!(miri) { 9 } else { 129 }, 0);
            for have in survivors(&code) {
                let want = code.shards().without(have);
                let recipe = code.recipe(have, want).unwrap();
                assert!(recipe.sources().is_within(have) && recipe.sources().len() == code.k());
                let sources: Vec<&[u8]> =
                    recipe.sources().iter().map(|s| &shards[usize::from(s)][..]).collect();
                let mut out = vec![vec![0; shards[0].len()]; want.len()];
                recipe.apply(&sources, &mut out.iter_mut().map(|o| &mut o[..]).collect::<Vec<_>>());
                for (bytes, shard) in out.iter().zip(want.iter()) {
                    assert_eq!(bytes, &shards[usize::from(shard)], "{code:?} {have:?} {shard}");
                }
            }
        }
    }

    #[test]
    fn parity_follows_changes_of_data() {
        for code in codes() {
            let (before, after) = (encoded(&code, 40, 0), encoded(&code, 40, 0x5a));
            for p in code.k()..code.k() + code.m() {
                let (mut one_by_one, mut at_once) = (before[p].clone(), before[p].clone());
                let mut changes = Vec::new();
                for d in 0..code.k() {
                    let delta = delta(&before[d], &after[d]);
                    code.apply_delta(p as Shard, d as Shard, &delta, &mut one_by_one);
                    changes.push((d as Shard, &before[d][..], &after[d][..]));
                }
                code.apply_changes(p as Shard, &changes, &mut at_once);
                assert_eq!(one_by_one, after[p]);
                assert_eq!(at_once, after[p]);
            }
        }
    }

    #[test]
    fn shapes_that_do_not_work_are_refused() {
        let new = |t, k, m| Code::new(t, k, m).map(|_| ()).unwrap_err();
        let shape = |k, m| CodeError::Shape { k, m };
        assert_eq!(new(Technique::IsaCauchy, 0, 1), shape(0, 1));
        assert_eq!(new(Technique::IsaCauchy, 2, 0), shape(2, 0));
        assert_eq!(new(Technique::JerasureReedSolVan, 100, 28), shape(100, 28));
        assert_eq!(new(Technique::IsaCauchy, usize::MAX, 2), shape(usize::MAX, 2));
        for (k, m) in [(33, 2), (2, 5), (22, 4)] {
            assert_eq!(new(Technique::IsaReedSolVan, k, m), CodeError::NotSeparable { k, m });
        }
        let code = Code::new(Technique::IsaCauchy, 2, 2).unwrap();
        let two = ShardSet::first(2);
        assert!(matches!(code.recipe(ShardSet::one(3), two), Err(CodeError::TooFew { .. })));
        assert!(matches!(code.recipe(ShardSet::first(5), two), Err(CodeError::Unknown { .. })));
    }

    #[test]
    fn recipes_are_remembered_and_bounded() {
        let code = Rc::new(Code::new(Technique::IsaCauchy, 6, 6).unwrap());
        let mut recipes = Recipes::new(code.clone());
        let have = ShardSet::first(7);
        let first = recipes.get(have, ShardSet::one(9)).unwrap();
        for bits in (0..1u128 << 12).step_by(if cfg!(miri) { 401 } else { 1 }) {
            let set = ShardSet::from_bits(bits);
            if set.len() >= 6 {
                recipes.get(set, ShardSet::one(0)).unwrap();
                recipes.get(have, ShardSet::one(9)).unwrap();
            }
        }
        assert!(recipes.known.len() <= RECIPES_MAX);
        assert!(Rc::ptr_eq(&first, &recipes.get(have, ShardSet::one(9)).unwrap()));
    }
}
