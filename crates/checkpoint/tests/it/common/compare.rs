//! Compares a folder with the GGUF file that llama.cpp's converter made of it.

use std::collections::BTreeSet;

use gguf::{Directory, File, Source, Strided, TensorInfo};
use serde_json::Value;

use crate::common::Described;

fn bytes(file: &File, tensor: &TensorInfo) -> Vec<u8> {
    let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
    let mut bytes = vec![0; piece as usize];
    file.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes).unwrap();
    bytes
}

/// What differs from the converter's file, a line each.
pub fn differences(file: &File, wanted: &Described) -> Vec<String> {
    let directory = file.directory();
    let names: BTreeSet<&str> = directory.tensors().iter().map(|it| it.name.as_str()).collect();
    let wanted_names: BTreeSet<&str> = wanted.tensors.keys().map(String::as_str).collect();
    let mut lines: Vec<String> = names
        .symmetric_difference(&wanted_names)
        .map(|name| format!("only one has {name}"))
        .collect();
    for (name, (ty, dims, hash)) in &wanted.tensors {
        let Some(tensor) = directory.find_tensor(name) else { continue };
        if tensor.ty.to_string() != *ty || tensor.dims != *dims {
            lines.push(format!("{name}: {} {:?}, not {ty} {dims:?}", tensor.ty, tensor.dims));
        } else {
            let found = blake3::hash(&bytes(file, tensor)).to_hex();
            if !found.starts_with(hash.as_str()) {
                lines.push(format!("{name}: other bytes"));
            }
        }
    }
    lines.extend(wanted.metadata.iter().filter_map(|(key, value)| differs(directory, key, value)));
    lines
}

fn differs(directory: &Directory, key: &str, wanted: &Value) -> Option<String> {
    let found = directory.get(key);
    let is_same = found.is_some_and(|found| match wanted {
        Value::String(text) => found.as_str() == Some(text),
        Value::Bool(flag) => found.as_bool() == Some(*flag),
        Value::Array(list) => found.as_array().is_some_and(|array| {
            let numbers: Option<Vec<f64>> = match (array.integers(), array.floats()) {
                (Some(all), _) => Some(all.map(|it| it as f64).collect()),
                (None, all) => all.map(|all| all.map(f64::from).collect()),
            };
            let number =
                |it: &Value| it.as_f64().or(it.as_bool().map(f64::from)).unwrap_or(f64::NAN);
            numbers.is_some_and(|found| found == list.iter().map(number).collect::<Vec<f64>>())
        }),
        number => {
            let is_whole = number.as_u64().is_some() && found.as_u64() == number.as_u64();
            is_whole || found.as_f32() == number.as_f64().map(|it| it as f32)
        }
    });
    (!is_same).then(|| format!("{key}: {found:?}, not {wanted}"))
}
