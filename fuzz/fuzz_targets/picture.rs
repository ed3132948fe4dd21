//! Any bytes at all, taken for a picture: its size, then its pixels.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vision::Picture;

fuzz_target!(|bytes: &[u8]| {
    let size = Picture::size(bytes);
    if let Ok(picture) = Picture::decode(bytes) {
        let (width, height) = (picture.width(), picture.height());
        assert_eq!(size.ok(), Some((width, height)));
        assert_eq!(picture.pixels().len(), 3 * width * height);
    }
});
