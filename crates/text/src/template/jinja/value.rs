use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use minijinja::machinery::ast;

use super::budget::{Budget, Fault};
use super::exec::Frame;

/// The deepest nesting of lists and maps. JSON from requests nests at most 128 deep.
pub(super) const NESTING_MAX: u16 = 160;
/// The memory cost of a place in a list.
const SLOT_BYTES: usize = 32;

/// Names or keys with their values, in the order of insertion, each name once.
pub(super) type Entries<'t> = Vec<(Rc<str>, Value<'t>)>;

/// A value of a template. Lists and maps never change and cannot contain themselves, so that every
/// walk over a value ends.
#[derive(Clone)]
pub(super) enum Value<'t> {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<str>),
    List(Rc<List<'t>>),
    Map(Rc<Map<'t>>),
    Namespace(Rc<RefCell<Entries<'t>>>),
    Loop(Rc<Loop<'t>>),
    Macro(Rc<Macro<'t>>),
    Function(Function),
}

pub(super) struct List<'t> {
    pub(super) items: Vec<Value<'t>>,
    nesting: u16,
}

pub(super) struct Map<'t> {
    pub(super) entries: Entries<'t>,
    nesting: u16,
}

/// The variable `loop`.
pub(super) struct Loop<'t> {
    pub(super) items: Rc<List<'t>>,
    pub(super) index: usize,
    pub(super) depth: usize,
}

pub(super) struct Macro<'t> {
    pub(super) decl: &'t ast::Macro<'t>,
    /// The scopes of a `call` block's body, or of a macro inside another one or in a loop; other
    /// macros see the template's top level.
    pub(super) frames: Option<Vec<Frame<'t>>>,
    pub(super) caller: Option<Value<'t>>,
}

/// The functions available to every template.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Namespace,
    Dict,
    RaiseException,
    StrftimeNow,
    /// A method of a map that is referenced and not called.
    Method,
}

impl<'t> Value<'t> {
    pub(super) fn str(text: &str, budget: &mut Budget) -> Result<Self, Fault> {
        budget.charge(text.len())?;
        Ok(Self::Str(text.into()))
    }

    pub(super) fn list(items: Vec<Value<'t>>, budget: &mut Budget) -> Result<Self, Fault> {
        budget.charge(items.len().saturating_mul(SLOT_BYTES))?;
        let nesting = nesting(items.iter())?;
        Ok(Self::List(Rc::new(List { items, nesting })))
    }

    /// A map; of entries with the same key the last one counts.
    pub(super) fn map(entries: Entries<'t>, budget: &mut Budget) -> Result<Self, Fault> {
        budget.charge(entries.len().saturating_mul(2 * SLOT_BYTES))?;
        let nesting = nesting(entries.iter().map(|(_, value)| value))?;
        let mut places: HashMap<Rc<str>, usize> = HashMap::with_capacity(entries.len());
        let mut unique: Entries = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            match places.get(&key) {
                Some(at) => unique[*at].1 = value,
                None => {
                    places.insert(Rc::clone(&key), unique.len());
                    unique.push((key, value));
                }
            }
        }
        Ok(Self::Map(Rc::new(Map { entries: unique, nesting })))
    }

    pub(super) fn from_json(json: &serde_json::Value, budget: &mut Budget) -> Result<Self, Fault> {
        use serde_json::Value as Json;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => match number.as_i64() {
                Some(int) => Self::Int(int),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::str(text, budget)?,
            Json::Array(items) => {
                let items = items.iter().map(|item| Self::from_json(item, budget));
                let items = items.collect::<Result<_, _>>()?;
                Self::list(items, budget)?
            }
            Json::Object(map) => {
                let entry = |(key, value): (&String, &Json)| {
                    budget.charge(key.len())?;
                    Ok((Rc::from(key.as_str()), Self::from_json(value, budget)?))
                };
                let entries = map.iter().map(entry).collect::<Result<_, Fault>>()?;
                Self::map(entries, budget)?
            }
        })
    }

    pub(super) fn from_const(
        constant: &minijinja::Value,
        budget: &mut Budget,
    ) -> Result<Self, Fault> {
        use minijinja::value::ValueKind;
        Ok(match constant.kind() {
            ValueKind::None => Self::None,
            ValueKind::Bool => Self::Bool(constant.is_true()),
            ValueKind::Number => match i64::try_from(constant.clone()) {
                Ok(int) if constant.is_integer() => Self::Int(int),
                _ => Self::Float(f64::try_from(constant.clone()).unwrap_or(f64::NAN)),
            },
            ValueKind::String => Self::str(constant.as_str().unwrap_or(""), budget)?,
            _ => Self::Undefined,
        })
    }

    /// Its nesting depth, if it can be part of a list or map.
    fn nesting(&self) -> Option<u16> {
        match self {
            Self::List(list) => Some(list.nesting),
            Self::Map(map) => Some(map.nesting),
            Self::Namespace(_) | Self::Loop(_) | Self::Macro(_) | Self::Function(_) => None,
            _ => Some(0),
        }
    }

    /// Python's truth: empty, zero and none are false.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Namespace(_) | Self::Loop(_) | Self::Macro(_) | Self::Function(_) => true,
        }
    }

    /// Its kind in a word, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "none",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Str(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Namespace(_) => "a namespace",
            Self::Loop(_) => "a loop",
            Self::Macro(_) | Self::Function(_) => "a function",
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined)
    }

    /// Whether it can be kept in a list, map or namespace.
    pub(super) fn is_plain(&self) -> bool {
        self.nesting().is_some()
    }
}

impl<'t> Map<'t> {
    pub(super) fn get(&self, key: &str) -> Option<&Value<'t>> {
        self.entries.iter().find(|(found, _)| **found == *key).map(|(_, value)| value)
    }
}

fn nesting<'v, 't: 'v>(parts: impl Iterator<Item = &'v Value<'t>>) -> Result<u16, Fault> {
    let mut deepest = 0;
    for part in parts {
        match part.nesting() {
            Some(nesting) if nesting < NESTING_MAX => deepest = deepest.max(nesting + 1),
            Some(_) => return Err(Fault::failed(format!("lists nest deeper than {NESTING_MAX}"))),
            None => return Err(Fault::failed(format!("{} cannot be kept in a list", part.kind()))),
        }
    }
    Ok(deepest)
}
