//! Nodes that each have the whole model and their own CPU. The speed of one of them by itself, and
//! of each while all compute, is the basis for predictions of their splits.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use placement::Measured;

use super::Test;
use crate::args::LocalArgs;
use crate::error::Error;
use crate::local;
use crate::progress::Shown;

/// Dropping the channels ends the threads.
pub struct Alone {
    nodes: Vec<Node>,
}

struct Node {
    work: Sender<Test>,
    rates: Receiver<Result<f64, Error>>,
}

impl Alone {
    /// Loads the model on each node, with the arguments `asked` of a single node.
    ///
    /// # Errors
    /// The model cannot be loaded.
    pub fn start(
        model: &Path,
        asked: &LocalArgs,
        context: usize,
        nodes: usize,
        progress: Shown,
    ) -> Result<Self, Error> {
        let start = |index: usize| {
            let (work, todo) = channel::<Test>();
            let (done, rates) = channel();
            let cpus = engine::own_cpus(index, nodes, 1);
            let (model, asked) = (model.to_owned(), asked.clone());
            std::thread::spawn(move || {
                engine::keep_to(&cpus);
                match local::start_for(&model, &asked, (context, 1), progress) {
                    Err(error) => drop(done.send(Err(error))),
                    Ok(mut local) => {
                        for test in todo {
                            if done.send(test.rate(&mut *local)).is_err() {
                                return;
                            }
                        }
                    }
                }
            });
            Node { work, rates }
        };
        Ok(Self { nodes: (0..nodes).map(start).collect() })
    }

    /// Tokens per second of the first node, while the others are idle.
    ///
    /// # Errors
    /// Those of [`Self::start`], or a step failed.
    pub fn one(&self, prompt: Test, answer: Test) -> Result<Measured, Error> {
        let rate = |test| Ok::<f64, Error>(self.run(test, 1)?[0]);
        Ok(Measured { prefill: rate(prompt)?, decode: rate(answer)? })
    }

    /// Mean tokens per second of a node, while all compute.
    ///
    /// # Errors
    /// Those of [`Self::one`].
    pub fn each(&self, prompt: Test, answer: Test) -> Result<Measured, Error> {
        let count = self.nodes.len();
        let mean = |test| {
            let rates = self.run(test, count)?;
            Ok::<f64, Error>(rates.iter().sum::<f64>() / count as f64)
        };
        Ok(Measured { prefill: mean(prompt)?, decode: mean(answer)? })
    }

    /// Runs a test on the first `count` nodes at once.
    fn run(&self, test: Test, count: usize) -> Result<Vec<f64>, Error> {
        let gone = || Error::Usage("a thread that measures has ended".to_owned());
        for node in &self.nodes[..count] {
            // A thread that has ended has reported its error.
            let _ = node.work.send(test);
        }
        let rates = self.nodes[..count].iter();
        rates.map(|node| node.rates.recv().unwrap_or_else(|_| Err(gone()))).collect()
    }
}
