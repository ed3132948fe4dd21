//! One model's sizes, read from JSON.

use gguf::{Array, Directory, TensorType, Value, Writer};
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;

use super::mix::{Mix, Sizes};
use super::tensor::Tensor;
use crate::HubError;

/// One model's sizes.
#[derive(Debug, Clone)]
pub struct Shape {
    pub name: String,
    pub arch: String,
    /// The only type in which its files exist.
    pub ty: Option<String>,
    metadata: Vec<(String, Value)>,
    /// Those outside of layers first, then layer by layer.
    pub tensors: Vec<Tensor>,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "type")]
    ty: Option<String>,
    /// Where the sizes were found.
    #[expect(dead_code, reason = "for those who read the file")]
    source: String,
    architecture: String,
    metadata: BTreeMap<String, Json>,
    /// By layers: `""` for none, `*` for all, or ranges such as `0-2,4`.
    tensors: BTreeMap<String, BTreeMap<String, Vec<u64>>>,
}

impl Shape {
    /// # Errors
    /// The text names the mistake.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|error| format!("{name}: {error}"))?;
        let arch = file.architecture;
        let value = |(key, json): (String, Json)| {
            let value = value(&json).ok_or_else(|| format!("{name}: {key} is {json}"))?;
            Ok((format!("{arch}.{key}"), value))
        };
        let metadata = file.metadata.into_iter().map(value).collect::<Result<Vec<_>, String>>()?;
        let count = metadata.iter().find(|(key, _)| *key == format!("{arch}.block_count"));
        let layers = count.and_then(|(_, count)| count.as_u64());
        let layers = layers.ok_or_else(|| format!("{name} has no block_count"))?;
        let mut tensors = Vec::new();
        for (at, group) in &file.tensors {
            let layers = among(at, layers).ok_or_else(|| format!("{name}: no layers are {at}"))?;
            for (tensor, dims) in group {
                let of_layer = |layer| Tensor {
                    name: match at.is_empty() {
                        true => tensor.clone(),
                        false => format!("blk.{layer}.{tensor}"),
                    },
                    dims: dims.clone(),
                    layer,
                };
                tensors.extend(layers.iter().copied().map(of_layer));
            }
        }
        tensors.sort_by_key(|tensor| (tensor.name.starts_with("blk."), tensor.layer));
        Ok(Self { name: name.to_owned(), arch, ty: file.ty, metadata, tensors })
    }

    /// The shape of a file.
    #[cfg(test)]
    pub fn of(header: &Directory) -> Self {
        let arch = header.str("general.architecture").expect("a model").to_owned();
        let metadata = header.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let tensor = |tensor: &gguf::TensorInfo| Tensor {
            name: tensor.name.clone(),
            dims: tensor.dims.clone(),
            layer: tensor.name.split('.').nth(1).and_then(|at| at.parse().ok()).unwrap_or(0),
        };
        let mut tensors: Vec<Tensor> = header.tensors().iter().map(tensor).collect();
        tensors.sort_by_key(|tensor| tensor.layer);
        Self { name: "file".to_owned(), arch, ty: None, metadata: metadata.collect(), tensors }
    }

    /// A number of the metadata; the largest, of a list.
    pub fn number(&self, key: &str) -> Option<u64> {
        let key = format!("{}.{key}", self.arch);
        let (_, value) = self.metadata.iter().find(|(found, _)| *found == key)?;
        let largest = |array: &Array| array.integers()?.max()?.try_into().ok();
        value.as_u64().or_else(|| value.as_array().and_then(largest))
    }

    /// The header of a file in this quantisation, without a vocabulary.
    ///
    /// # Errors
    /// The sizes make no valid file.
    pub fn header(&self, mix: &Mix) -> Result<Directory, HubError> {
        let wrong = |error: gguf::Error| HubError::CannotRun {
            name: self.name.clone(),
            why: error.to_string(),
            bytes: 0,
        };
        self.declared(mix, false).directory().map_err(wrong)
    }

    /// The metadata and tensors of a file in this quantisation; all matrices of `pure` files have
    /// its main type.
    pub fn declared(&self, mix: &Mix, pure: bool) -> Writer {
        let mut writer = Writer::new();
        self.declare(&mut writer, mix, pure);
        writer
    }

    /// Adds them to a file.
    pub fn declare(&self, writer: &mut Writer, mix: &Mix, pure: bool) {
        writer
            .set("general.architecture", Value::String(self.arch.clone()))
            .set("general.name", Value::String(format!("{} (made up)", self.name)))
            .set("general.file_type", Value::U32(mix.file_type))
            .set("general.quantization_version", Value::U32(2));
        for (key, value) in &self.metadata {
            writer.set(key, value.clone());
        }
        for (tensor, ty) in self.tensors.iter().zip(self.types(mix, pure)) {
            writer.declare(&tensor.name, &tensor.dims, ty);
        }
    }

    fn sizes(&self) -> Sizes {
        let number = |key| self.number(key).unwrap_or(0);
        Sizes {
            layers: number("block_count"),
            values: self.tensors.iter().filter(|tensor| tensor.is_value()).count() as u64,
            shared: number("attention.head_count") >= 4 * number("attention.head_count_kv"),
            tied: !self.tensors.iter().any(|tensor| tensor.name == "output.weight"),
            experts: number("expert_count") > 0,
        }
    }

    /// The type of each tensor.
    pub fn types(&self, mix: &Mix, pure: bool) -> Vec<TensorType> {
        let sizes = self.sizes();
        let mut values = 0;
        let of = |tensor: &Tensor| {
            let ty = mix.type_of(tensor, values, &sizes, pure);
            values += u64::from(tensor.is_value());
            ty
        };
        self.tensors.iter().map(of).collect()
    }
}

/// The layers of `0-2,4`.
fn among(text: &str, layers: u64) -> Option<Vec<u64>> {
    match text {
        "" => return Some(vec![0]),
        "*" => return Some((0..layers).collect()),
        _ => {}
    }
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if last >= layers {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Whole numbers become u32 and i32, others f32.
fn value(json: &Json) -> Option<Value> {
    let float = |json: &Json| json.as_f64().map(|number| number as f32);
    Some(match json {
        Json::Bool(value) => Value::Bool(*value),
        Json::String(text) => Value::String(text.clone()),
        Json::Number(number) if number.is_u64() => Value::U32(number.as_u64()?.try_into().ok()?),
        Json::Number(_) => Value::F32(float(json)?),
        Json::Array(all) if all.iter().all(Json::is_boolean) => Value::Array(Array::from_bools(
            &all.iter().filter_map(Json::as_bool).collect::<Vec<_>>(),
        )),
        Json::Array(all) if all.iter().all(Json::is_u64) => {
            let numbers = all.iter().map(|one| i32::try_from(one.as_u64()?).ok());
            Value::Array(Array::from_i32s(&numbers.collect::<Option<Vec<_>>>()?))
        }
        Json::Array(all) => {
            Value::Array(Array::from_f32s(&all.iter().map(float).collect::<Option<Vec<_>>>()?))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "source": "nobody", "architecture": "llama",
        "metadata": { "block_count": 4, "attention.head_count_kv": [0, 2, 0, 2], "x": 1.5 },
        "tensors": {
            "": { "token_embd.weight": [32, 10] },
            "*": { "attn_norm.weight": [32] },
            "1,3": { "attn_v.weight": [32, 16] }
        }
    }"#;

    #[test]
    fn tensors_stand_by_layers() {
        let shape = Shape::parse("small", TEXT).unwrap();
        let names: Vec<&str> = shape.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(
            names[..3],
            ["token_embd.weight", "blk.0.attn_norm.weight", "blk.1.attn_norm.weight"]
        );
        assert_eq!((names.len(), shape.number("attention.head_count_kv")), (7, Some(2)));
        for (from, to) in
            [("1,3", "1,4"), ("block_count", "blocks"), ("1.5", "null"), ("nobody\"", "")]
        {
            assert!(Shape::parse("wrong", &TEXT.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }
}
