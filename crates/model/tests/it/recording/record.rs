//! The recorded operations.

use super::*;

pub struct Recording {
    pub(super) cpu: Cpu,
    pub(super) commands: Vec<Command>,
    /// The operations of the current segment.
    pub(super) trace: Vec<Operation>,
    /// The operations of each earlier segment.
    pub(super) segments: HashMap<SegmentKey, Vec<Operation>>,
    /// A failure is permanent.
    pub(super) fault: Option<&'static str>,
}

pub(super) type Command = Box<dyn FnOnce(&mut Cpu)>;

/// An operation, and the addresses of its operands.
pub(super) type Operation = (&'static str, Vec<usize>);

pub(super) type Of<T> = Arc<Mutex<T>>;

/// Activations: `memory` holds their values after the last run of commands.
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

    /// Makes the device fail.
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

    /// Like [`Self::record`], for operations that change only `x`.
    pub(super) fn change(
        &mut self,
        name: &'static str,
        x: &Rows,
        change: impl FnOnce(&mut Cpu, &mut <Cpu as Backend>::Rows) + 'static,
    ) {
        let memory = x.memory.clone();
        self.record(name, &[x], move |cpu| change(cpu, &mut memory.lock().unwrap()));
    }

    /// Like [`Self::record`], for operations that compute `out` from `x`.
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

type OfCpu = <Cpu as Backend>::Rows;

/// The memory of these rows; some may be the same rows.
pub(super) struct Operands<const N: usize>([Of<OfCpu>; N]);

impl<const N: usize> Operands<N> {
    pub(super) fn of(rows: [&Rows; N]) -> Self {
        Self(rows.map(|rows| rows.memory.clone()))
    }

    pub(super) fn read(&self, read: impl FnOnce([&OfCpu; N])) {
        let first = |own| self.0.iter().position(|other| Arc::ptr_eq(own, other)).unwrap();
        let firsts = self.0.each_ref().map(first);
        let lock = |at: usize| (firsts[at] == at).then(|| self.0[at].lock().unwrap());
        let locked: Vec<_> = (0..N).map(lock).collect();
        read(firsts.map(|first| &**locked[first].as_ref().unwrap()));
    }
}

/// The keys that an indexer chooses from.
pub(super) enum OfKeys {
    Positions(<Recording as Backend>::Kv),
    Entries(<Recording as Backend>::Entries),
}

impl OfKeys {
    pub(super) fn of(keys: IndexKeys<'_, Recording>) -> Self {
        match keys {
            IndexKeys::Positions(keys) => Self::Positions(keys.clone()),
            IndexKeys::Entries(keys) => Self::Entries(keys.clone()),
        }
    }

    pub(super) fn read(&self, read: impl FnOnce(IndexKeys<'_, Cpu>)) {
        match self {
            Self::Positions(keys) => read(IndexKeys::Positions(&*keys.lock().unwrap())),
            Self::Entries(keys) => read(IndexKeys::Entries(&*keys.lock().unwrap())),
        }
    }
}
