//! Commands of a driver: from the command line, separated by `,`, or as lines of the standard
//! input. Each is answered with a line of JSON.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use tokio::sync::mpsc;

/// The words of a command.
pub type Words = Vec<String>;

/// Splits the words of the command line into commands.
fn split(words: &[String]) -> Vec<Words> {
    words.split(|w| w == ",").filter(|c| !c.is_empty()).map(<[String]>::to_vec).collect()
}

/// The commands that these words of the command line have, or with none those of the standard
/// input. That is read by a thread of its own: clients stay alive while the driver is elsewhere.
pub fn commands(words: &[String]) -> mpsc::UnboundedReceiver<Result<Words>> {
    let (send, commands) = mpsc::unbounded_channel();
    if words.is_empty() {
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let line = line.context("the standard input");
                let words = line.map(|l| l.split_whitespace().map(str::to_owned).collect());
                if send.send(words).is_err() {
                    break;
                }
            }
        });
    } else {
        split(words).into_iter().for_each(|c| drop(send.send(Ok(c))));
    }
    commands
}

/// Answers to commands, on the standard output.
#[derive(Default)]
pub struct Answers {
    wrong: u64,
}

impl Answers {
    /// Prints the answer to a command, with its words as `command`. An error ends the run; answers
    /// of the server that were not right (`wrong`) let the rest run.
    pub fn give(&mut self, words: &[String], answer: Result<Value>) -> Result<()> {
        let command = words.join(" ");
        let mut said = match answer {
            Ok(said) => said,
            Err(e) => {
                print(&json!({"command": command, "error": format!("{e:#}")}))?;
                return Err(e.context(command));
            }
        };
        self.wrong += said["wrong"].as_u64().unwrap_or(0);
        said["command"] = command.into();
        print(&said)
    }

    /// An error if there were wrong answers.
    pub fn end(self) -> Result<()> {
        match self.wrong {
            0 => Ok(()),
            n => bail!("{n} answers of the server were wrong: see `samples` above"),
        }
    }
}

fn print(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}").and_then(|()| out.flush()).context("the standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Words {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn commands_are_split_at_commas() {
        let mut found = commands(&words("a b , c ,"));
        for expected in ["a b", "c"] {
            assert_eq!(found.blocking_recv().unwrap().unwrap(), words(expected));
        }
        assert!(found.blocking_recv().is_none());
    }

    #[test]
    fn wrong_answers_end_in_an_error_after_all_ran() {
        let mut answers = Answers::default();
        answers.give(&words("a"), Ok(json!({"wrong": 2}))).unwrap();
        answers.give(&words("b"), Ok(json!({"wrong": 0}))).unwrap();
        assert!(answers.end().unwrap_err().to_string().contains("2 answers of the server"));
        Answers::default().end().unwrap();
        let failed = Answers::default().give(&words("a b"), Err(anyhow::anyhow!("no")));
        assert_eq!(format!("{:#}", failed.unwrap_err()), "a b: no");
    }
}
