//! Hostile and broken input: always a typed error, never a panic, never a large allocation.

use gguf::{Directory, Error, TensorType, Value, ValueType, Writer};

/// A small valid file that uses every kind of value.
fn valid() -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", Value::String("llama".into()))
        .set("a.u8", Value::U8(1))
        .set("a.i16", Value::I16(-2))
        .set("a.u64", Value::U64(u64::MAX))
        .set("a.f32", Value::F32(0.5))
        .set("a.f64", Value::F64(-0.25))
        .set("a.bool", Value::Bool(true))
        .set_strings("a.strings", &["one", "", "drei ☃"])
        .set_i32s("a.numbers", &[3, -4])
        .set_f32s("a.floats", &[1.5])
        .declare("x", &[32, 2], TensorType::Q8_0)
        .declare("y", &[3], TensorType::F32);
    let mut out = Vec::new();
    writer
        .write(&mut out, |_, _, bytes, out| {
            out.extend(vec![7; bytes as usize]);
            Ok(())
        })
        .expect("writing to memory cannot fail");
    out
}

fn parse(bytes: &[u8]) -> Result<Directory, Error> {
    Directory::parse(bytes, bytes.len() as u64)
}

/// Replaces the first occurrence of `old`.
fn patch(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at =
        bytes.windows(old.len()).position(|window| window == old).expect("the pattern is there");
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

#[test]
fn what_was_written_is_read() {
    let directory = parse(&valid()).unwrap();
    assert_eq!(directory.str("general.architecture").unwrap(), "llama");
    assert_eq!(directory.u64("a.u8").unwrap(), 1);
    assert_eq!(directory.get("a.i16"), Some(&Value::I16(-2)));
    assert_eq!(directory.u64("a.u64").unwrap(), u64::MAX);
    assert_eq!(directory.f32("a.f32").unwrap(), 0.5);
    assert_eq!(directory.f32("a.f64").unwrap(), -0.25);
    assert_eq!(directory.find_bool("a.bool").unwrap(), Some(true));
    let strings = directory.find_array("a.strings").unwrap().unwrap();
    assert_eq!(
        strings.strings().unwrap().collect::<Vec<_>>(),
        ["one", "", "drei ☃"].map(str::as_bytes)
    );
    assert!(strings.integers().is_none() && strings.floats().is_none());
    let numbers = directory.find_array("a.numbers").unwrap().unwrap();
    assert_eq!(numbers.integers().unwrap().collect::<Vec<_>>(), [3, -4]);
    let floats = directory.find_array("a.floats").unwrap().unwrap();
    assert_eq!(floats.floats().unwrap().collect::<Vec<_>>(), [1.5]);

    let x = directory.tensor("x").unwrap();
    assert_eq!((x.columns(), x.rows(), x.row_bytes()), (32, 2, 34));
    assert_eq!(x.range.end - x.range.start, 68);
    assert_eq!(directory.tensor("y").unwrap().rows(), 1);
    assert!(matches!(directory.tensor("z"), Err(Error::MissingTensor { .. })));
    assert!(matches!(directory.u64("nothing"), Err(Error::MissingKey { .. })));
    assert!(matches!(directory.u64("a.f32"), Err(Error::WrongType { .. })));
}

#[test]
fn bytes_that_are_no_utf_8_are_kept() {
    let odd = parse(&patch(&valid(), b"llama", b"ll\xffma")).unwrap();
    assert_eq!(odd.str("general.architecture").unwrap(), "ll\u{fffd}ma");
    let odd = parse(&patch(&valid(), b"one", b"\xe2\x98e")).unwrap();
    let strings = odd.find_array("a.strings").unwrap().unwrap();
    assert_eq!(strings.strings().unwrap().next(), Some(&b"\xe2\x98e"[..]));
}

#[test]
fn an_array_of_equal_entries_is_one() {
    let mut writer = Writer::new();
    writer
        .set_i32s("same", &[4, 4, 4])
        .set_i32s("other", &[4, 4, 5])
        .set_i32s("none", &[])
        .set_f32s("floats", &[0.5, 0.5]);
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    let directory = parse(&bytes).unwrap();
    assert_eq!(directory.u64("same").unwrap(), 4);
    assert_eq!(directory.find_f32("floats").unwrap(), Some(0.5));
    for key in ["other", "none", "floats"] {
        assert!(matches!(directory.u64(key), Err(Error::WrongType { .. })), "{key}");
    }
}

#[test]
fn truncated_at_every_byte() {
    let bytes = valid();
    for len in 0..bytes.len() {
        // The last tensor's padding may be missing, its bytes may not.
        let complete = len >= bytes.len() - 20;
        assert_eq!(parse(&bytes[..len]).is_ok(), complete, "{len} of {} bytes", bytes.len());
    }
}

#[test]
fn every_single_byte_flipped_never_panics() {
    let bytes = valid();
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut broken = bytes.clone();
            broken[at] ^= flip;
            // Many flips are harmless (a tensor's bytes, a float); none may panic.
            let _ = parse(&broken);
        }
    }
}

#[test]
fn counts_and_lengths_of_2_63() {
    let bytes = valid();
    let huge = (1u64 << 63).to_le_bytes();
    let put = |at: usize| [&bytes[..at], &huge, &bytes[at + 8..]].concat();
    assert!(matches!(parse(&put(8)), Err(Error::TooMany { what: "the tensor count", .. })));
    assert!(matches!(parse(&put(16)), Err(Error::TooMany { what: "the metadata count", .. })));
    assert!(matches!(parse(&put(24)), Err(Error::Truncated { .. })), "a key's length");

    let strings = [&9u32.to_le_bytes()[..], &8u32.to_le_bytes(), &3u64.to_le_bytes()].concat();
    let many = [&9u32.to_le_bytes()[..], &8u32.to_le_bytes(), &huge].concat();
    let error = parse(&patch(&bytes, &strings, &many)).unwrap_err();
    assert!(matches!(error, Error::Truncated { what: "an array of strings", .. }), "{error}");

    let numbers = [&9u32.to_le_bytes()[..], &5u32.to_le_bytes(), &2u64.to_le_bytes()].concat();
    let many = [&9u32.to_le_bytes()[..], &5u32.to_le_bytes(), &huge].concat();
    assert!(matches!(parse(&patch(&bytes, &numbers, &many)), Err(Error::Truncated { .. })));
}

#[test]
fn impossible_tensors() {
    let bytes = valid();
    let entry = |dims: &[u64], ty: u32, offset: u64| {
        let mut out = [1u64.to_le_bytes().as_slice(), b"x"].concat();
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out
    };
    let good = entry(&[32, 2], 8, 0);
    let with = |dims: &[u64], ty, offset| parse(&patch(&bytes, &good, &entry(dims, ty, offset)));
    assert!(with(&[32, 2], 8, 0).is_ok());

    let dims = |result| matches!(result, Err(Error::Dims { .. }));
    assert!(dims(with(&[1 << 63, 2], 0, 0)), "the product overflows");
    assert!(dims(with(&[1 << 62, 1], 0, 0)), "the bytes overflow");
    assert!(dims(with(&[0, 2], 0, 0)), "an empty dimension");
    assert!(dims(with(&[33, 2], 8, 0)), "not a whole number of blocks");
    assert!(matches!(with(&[32, 2], 8, 7), Err(Error::Misaligned { .. })));
    assert!(matches!(with(&[32, 2], 8, 32), Err(Error::Overlap { .. })), "lies on y");
    assert!(matches!(with(&[32, 2], 8, 1 << 40), Err(Error::OutOfFile { .. })));
    assert!(with(&[32, 2], 8, u64::MAX - 31).is_err(), "the end overflows");
    assert!(matches!(with(&[32, 2], u32::MAX, 0), Err(Error::TensorType { .. })));
    assert!(
        matches!(with(&[1 << 33, 1], 0, 0), Err(Error::OutOfFile { .. })),
        "larger than the file"
    );
    assert!(matches!(with(&[1, 1, 1, 1, 1], 0, 0), Err(Error::TooMany { .. })), "five dimensions");
    assert!(matches!(with(&[], 0, 0), Err(Error::TooMany { .. })), "no dimension");
}

#[test]
fn bad_alignment_and_duplicates() {
    for (alignment, good) in [(64, true), (0, false), (3, false), (1 << 20, false)] {
        let mut writer = Writer::new();
        writer.set("general.alignment", Value::U32(alignment));
        let mut out = Vec::new();
        writer.write(&mut out, |_, _, _, _| Ok(())).unwrap();
        assert_eq!(parse(&out).is_ok(), good, "alignment {alignment}");
    }
    let mut twice = Writer::new();
    twice.set("k", Value::U8(1)).set("k", Value::U8(2));
    let mut out = Vec::new();
    twice.write(&mut out, |_, _, _, _| Ok(())).unwrap();
    assert!(matches!(parse(&out), Err(Error::Duplicate { what: "metadata key", .. })));

    let mut twice = Writer::new();
    twice.declare("t", &[8], TensorType::F32).declare("t", &[8], TensorType::F32);
    let mut out = Vec::new();
    let fill = |_: &str, _: TensorType, _: u64, out: &mut Vec<u8>| {
        out.extend([0; 32]);
        Ok(())
    };
    twice.write(&mut out, fill).unwrap();
    assert!(matches!(parse(&out), Err(Error::Duplicate { what: "tensor", .. })));
}

#[test]
fn a_safetensors_file_is_refused_by_its_first_bytes() {
    let header = br#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}"#;
    for len in [header.len() as u64, 1 << 63, u64::MAX, u64::from(u32::from_le_bytes(*b"GGUF"))] {
        let bytes = [&len.to_le_bytes()[..], header, &[0; 36]].concat();
        let error = parse(&bytes).unwrap_err();
        assert!(matches!(error, Error::Magic { .. } | Error::Version { .. }), "{len}: {error}");
    }
}

#[test]
fn arrays_of_arrays_are_passed_on_and_have_a_depth() {
    // One array of two bytes in `depth` arrays of one.
    let nested = |depth: usize| {
        let array = |ty: u32, len: u64| [&ty.to_le_bytes()[..], &len.to_le_bytes()].concat();
        [array(9, 1).repeat(depth), array(0, 2), vec![7, 8]].concat()
    };
    let with = |array: &[u8]| {
        let mut writer = Writer::new();
        writer.set("a.u8", Value::U8(1));
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
        // The array and its type take the place of the byte and its type, at the end.
        let value = [&0u32.to_le_bytes()[..], &[1]].concat();
        let at = bytes.windows(5).rposition(|found| found == value).unwrap();
        parse(&[&bytes[..at], &9u32.to_le_bytes(), array].concat())
    };
    for depth in 1..=8 {
        let directory = with(&nested(depth)).unwrap();
        let array = directory.find_array("a.u8").unwrap().unwrap();
        assert_eq!((array.element_type(), array.len()), (ValueType::Array, 1), "{depth}");
        assert!(array.integers().is_none() && array.strings().is_none());
    }
    assert!(matches!(with(&nested(9)), Err(Error::TooMany { limit: 8, .. })));
    let endless = [&9u32.to_le_bytes()[..], &u64::MAX.to_le_bytes(), &nested(1)].concat();
    assert!(matches!(with(&endless), Err(Error::Truncated { .. })));
    let truncated = nested(3);
    for len in 0..truncated.len() {
        assert!(with(&truncated[..len]).is_err(), "{len}");
    }
}

#[test]
fn wrong_magic_version_types_and_text() {
    let bytes = valid();
    assert!(matches!(parse(&patch(&bytes, b"GGUF", b"GGML")), Err(Error::Magic { .. })));
    for version in [0u8, 1, 4, 255] {
        let mut other = bytes.clone();
        other[4] = version;
        assert!(matches!(parse(&other), Err(Error::Version { .. })), "version {version}");
    }
    let mut turned = bytes.clone();
    turned[4..8].reverse();
    assert!(matches!(parse(&turned), Err(Error::BigEndian)));
    let strings = [&9u32.to_le_bytes()[..], &8u32.to_le_bytes()].concat();
    let unknown = [&9u32.to_le_bytes()[..], &13u32.to_le_bytes()].concat();
    assert!(matches!(parse(&patch(&bytes, &strings, &unknown)), Err(Error::ValueType { .. })));
    let truth = [&7u32.to_le_bytes()[..], &[1]].concat();
    let lie = [&7u32.to_le_bytes()[..], &[2]].concat();
    assert!(matches!(parse(&patch(&bytes, &truth, &lie)), Err(Error::Bool { found: 2, .. })));
}
