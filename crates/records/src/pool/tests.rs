use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn file(blocks: usize) -> (tempfile::TempDir, Arc<DirectFile>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let bytes: Vec<u8> = (0..blocks * ALIGN).map(|at| (at / ALIGN) as u8).collect();
    std::fs::write(&path, bytes).unwrap();
    let file = Arc::new(DirectFile::open(path).unwrap());
    (dir, file)
}

fn block(file: &Arc<DirectFile>, at: usize) -> Read {
    Read { file: file.clone(), offset: (at * ALIGN) as u64, bytes: ALIGN, into: None }
}

#[test]
fn many_ranges_arrive_and_are_counted() {
    let (_dir, file) = file(64);
    let pool = Pool::with_depth(4).unwrap();
    let pending: Vec<_> = (0..64).map(|at| pool.read(block(&file, at))).collect();
    for (at, mut one) in pending.into_iter().enumerate() {
        let buffer = one.wait(Instant::now() + PATIENCE).unwrap().unwrap();
        assert_eq!(&buffer[..], [at as u8; ALIGN]);
        assert!(one.try_take().is_none(), "taken twice");
    }
    let counts = pool.counts();
    assert_eq!((counts.requests, counts.bytes, counts.failures), (64, 64 * ALIGN as u64, 0));
    assert!(counts.busy > Duration::ZERO);
}

#[test]
fn a_buffer_of_the_caller_is_filled_in_place() {
    let (_dir, file) = file(2);
    let pool = Pool::with_depth(1).unwrap();
    let buffer = Buffer::zeroed(2 * ALIGN);
    let place = buffer.as_ptr();
    let read = Read { into: Some(buffer), ..block(&file, 1) };
    let buffer = pool.read(read).wait_forever().unwrap().unwrap();
    assert_eq!(buffer.as_ptr(), place);
    assert_eq!(&buffer[..], [1; ALIGN]);
}

#[test]
fn a_buffer_is_filled_in_another_way() {
    let pool = Pool::with_depth(2).unwrap();
    let fill = |out: &mut [u8]| {
        out.fill(9);
        Ok(())
    };
    let mut given = pool.fill(3, Some(Buffer::zeroed(5)), fill);
    assert_eq!(&given.wait_forever().unwrap().unwrap()[..], [9; 3]);
    let mut small = pool.fill(6, Some(Buffer::zeroed(5)), fill);
    assert!(small.wait_forever().unwrap().is_err());
    let mut panics = pool.fill(1, None, |_| panic!("a thread of the pool survives this"));
    assert!(panics.wait_forever().unwrap().is_err());
    assert_eq!(pool.fill(2, None, fill).wait_forever().unwrap().unwrap().len(), 2);
    let counts = pool.counts();
    assert_eq!((counts.requests, counts.bytes, counts.failures), (4, 5, 2));
}

#[test]
fn what_is_not_aligned_or_does_not_fit_is_an_error() {
    let (_dir, file) = file(2);
    let pool = Pool::with_depth(1).unwrap();
    let small = Some(Buffer::zeroed(10));
    for read in [
        Read { offset: 1, ..block(&file, 0) },
        Read { bytes: 100, ..block(&file, 0) },
        Read { into: small, ..block(&file, 0) },
    ] {
        let error = pool.read(read).wait_forever().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(pool.counts().failures, 3);
    let mut past = pool.read(block(&file, 2));
    assert_eq!(past.wait_forever().unwrap().unwrap().len(), 0, "the file has ended");
}

#[test]
fn a_dropped_request_is_not_read_and_a_dropped_pool_ends_all() {
    let (_dir, file) = file(8);
    let pool = Pool::with_depth(1).unwrap();
    // The first takes an hour, so the others wait behind it.
    pool.limit(Some(1));
    let mut first = pool.read(block(&file, 0));
    while pool.counts().busy.is_zero() {
        std::thread::yield_now();
    }
    drop(pool.read(block(&file, 1)));
    let mut third = pool.read(block(&file, 2));
    assert!(third.wait(Instant::now()).is_none(), "a deadline ends the wait");
    drop(pool);
    assert_eq!(first.wait_forever().unwrap().unwrap().len(), ALIGN);
    let error = third.wait_forever().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
}

#[test]
fn a_limited_pool_measures_no_more_than_its_limit() {
    let (_dir, file) = file(512);
    let pool = Pool::new().unwrap();
    assert!(pool.measure(&file, 1 << 20).unwrap() > 0.0);
    pool.limit(Some(32 << 20));
    assert!(pool.measure(&file, 2 << 20).unwrap() <= f64::from(32 << 20));
}
