//! Any bytes at all, taken for a GGUF file: parse, then touch everything that was accepted.
#![no_main]

use gguf::{Directory, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(directory) = Directory::parse(bytes, bytes.len() as u64) else { return };
    for (_, value) in directory.metadata() {
        if let Value::Array(array) = value {
            let read = array.strings().map(Iterator::count);
            let read = read.or_else(|| array.integers().map(Iterator::count));
            let read = read.or_else(|| array.floats().map(Iterator::count));
            assert_eq!(read, Some(array.len()));
        }
    }
    for tensor in directory.tensors() {
        let range = tensor.range.start as usize..tensor.range.end as usize;
        assert_eq!(bytes[range].len(), tensor.rows() * tensor.row_bytes());
    }
});
