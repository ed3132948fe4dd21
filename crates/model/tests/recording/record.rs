//! What is recorded, and how.

use super::*;

pub struct Recording {
    pub(super) cpu: Cpu,
    pub(super) commands: Vec<Command>,
    /// The operations of the segment that is recorded.
    pub(super) trace: Vec<Operation>,
    /// Those of each segment that was.
    pub(super) segments: HashMap<SegmentKey, Vec<Operation>>,
    /// What failed stays failed.
    pub(super) fault: Option<&'static str>,
}

pub(super) type Command = Box<dyn FnOnce(&mut Cpu)>;

/// What is asked for, and where its numbers lie.
pub(super) type Operation = (&'static str, Vec<usize>);

pub(super) type Of<T> = Arc<Mutex<T>>;

/// Activations: what is in `memory` is what they were when the commands last ran.
pub struct Rows {
    pub(super) memory: Of<<Cpu as Backend>::Rows>,
    pub(super) mirror: Vec<f32>,
    pub(super) width: usize,
}

impl Rows {
    pub(super) fn at(&self) -> usize {
        Arc::as_ptr(&self.memory).addr()
    }
}

impl Recording {
    pub fn new(cpu: Cpu) -> Self {
        Self { cpu, commands: Vec::new(), trace: Vec::new(), segments: HashMap::new(), fault: None }
    }

    /// The device breaks.
    pub fn break_down(&mut self, fault: &'static str) {
        self.fault = Some(fault);
    }

    pub(super) fn record(
        &mut self,
        name: &'static str,
        operands: &[&Rows],
        command: impl FnOnce(&mut Cpu) + 'static,
    ) {
        self.trace.push((name, operands.iter().map(|rows| rows.at()).collect()));
        self.commands.push(Box::new(command));
    }

    /// As [`Self::record`], of what changes `x` alone.
    pub(super) fn change(
        &mut self,
        name: &'static str,
        x: &Rows,
        change: impl FnOnce(&mut Cpu, &mut <Cpu as Backend>::Rows) + 'static,
    ) {
        let memory = x.memory.clone();
        self.record(name, &[x], move |cpu| change(cpu, &mut memory.lock().unwrap()));
    }

    /// As [`Self::record`], of what makes `out` from `x`.
    pub(super) fn make(
        &mut self,
        name: &'static str,
        x: &Rows,
        out: &Rows,
        make: impl FnOnce(&mut Cpu, &<Cpu as Backend>::Rows, &mut <Cpu as Backend>::Rows) + 'static,
    ) {
        let (from, to) = (x.memory.clone(), out.memory.clone());
        self.record(name, &[x, out], move |cpu| {
            make(cpu, &from.lock().unwrap(), &mut to.lock().unwrap());
        });
    }
}

pub(super) fn of<T>(value: T) -> Of<T> {
    Arc::new(Mutex::new(value))
}

type OfKv = <Recording as Backend>::Kv;
type OfEntries = <Recording as Backend>::Entries;

/// What an indexer chooses from: one of the two.
pub(super) fn keys(keys: IndexKeys<'_, Recording>) -> (Option<OfKv>, Option<OfEntries>) {
    match keys {
        IndexKeys::Positions(keys) => (Some(keys.clone()), None),
        IndexKeys::Entries(keys) => (None, Some(keys.clone())),
    }
}
