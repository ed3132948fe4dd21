//! Copies of fixtures, with lies in them.

use gguf::{File, Memory, Source, TensorType, Value, Writer};

/// The defect in a copy of a fixture.
#[derive(Debug, Clone)]
pub enum Lie {
    Set(&'static str, Value),
    List(&'static str, Vec<i32>),
    Drop(&'static str),
    /// The tensor has one row more.
    Grow(&'static str),
    /// There is one tensor more, a vector.
    Add(&'static str),
    /// The tensor has another type.
    Type(&'static str, TensorType),
}

pub fn fixture(name: &str) -> File {
    File::open(fixtures::path(&format!("models/{name}.gguf"))).expect("it is a fixture")
}

/// A copy of a fixture with one lie; the weights are zeros, rotation's factors ones.
pub fn copy(name: &str, lie: Option<&Lie>) -> Memory {
    let file = fixture(name);
    let mut writer = Writer::new();
    for (key, value) in file.directory().metadata() {
        match lie {
            Some(Lie::Drop(dropped) | Lie::Set(dropped, _) | Lie::List(dropped, _))
                if key == *dropped => {}
            _ => drop(writer.set(key, value.clone())),
        }
    }
    match lie {
        Some(Lie::Set(key, value)) => drop(writer.set(key, value.clone())),
        Some(Lie::List(key, list)) => drop(writer.set_i32s(key, list)),
        _ => {}
    }
    for tensor in file.directory().tensors() {
        let mut dims = tensor.dims.clone();
        match lie {
            Some(Lie::Drop(name)) if tensor.name == *name => continue,
            Some(Lie::Grow(name)) if tensor.name == *name => *dims.last_mut().unwrap() += 1,
            _ => {}
        }
        let ty = match lie {
            Some(Lie::Type(name, ty)) if tensor.name == *name => *ty,
            _ => tensor.ty,
        };
        writer.declare(&tensor.name, &dims, ty);
    }
    if let Some(Lie::Add(name)) = lie {
        writer.declare(name, &[8], TensorType::F32);
    }
    written(&mut writer)
}

/// The file in memory; rotation's factors are ones, all other numbers zeros.
fn written(writer: &mut Writer) -> Memory {
    let mut bytes = Vec::new();
    let fill = |name: &str, _, len: u64, out: &mut Vec<u8>| {
        let number = if name.starts_with("rope") { 1.0_f32 } else { 0.0 };
        (0..len / 4).for_each(|_| out.extend(number.to_le_bytes()));
        Ok(())
    };
    writer.write(&mut bytes, fill).unwrap();
    Memory::new(bytes).unwrap()
}

/// A copy of a fixture, whose architecture has another name; the weights are zeros.
pub fn copy_as(name: &str, old: &str, new: &str) -> Memory {
    let file = fixture(name);
    let mut writer = Writer::new();
    for (key, value) in file.directory().metadata() {
        let own = key.strip_prefix(old).filter(|rest| rest.starts_with('.'));
        let key = own.map_or(key.to_owned(), |rest| format!("{new}{rest}"));
        let is_name = key == "general.architecture";
        writer.set(&key, if is_name { Value::String(new.into()) } else { value.clone() });
    }
    for tensor in file.directory().tensors() {
        writer.declare(&tensor.name, &tensor.dims, tensor.ty);
    }
    written(&mut writer)
}
