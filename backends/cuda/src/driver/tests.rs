//! The driver layer over the fake driver: checks, errors and what is released.

use super::fake::{self, ILLEGAL_ADDRESS, OUT_OF_MEMORY};
use super::*;

const FATBIN: [u8; 24] = {
    let mut bytes = [0; 24];
    let header = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 8];
    let mut index = 0;
    while index < header.len() {
        bytes[index] = header[index];
        index += 1;
    }
    bytes
};

const CONFIG: LaunchConfig = LaunchConfig {
    grid: [3, 1, 1],
    block: [128, 1, 1],
    shared_bytes: 0,
    dependent: false,
    cluster: None,
};

fn open() -> Context {
    Context::open_on(fake::library().unwrap(), 0).unwrap()
}

fn fail(call: &'static str, code: u32) {
    fake::with(|driver| driver.failures.insert(call, code));
}

#[test]
fn unusable_drivers_are_told_apart() {
    let refusal = |version, call: &'static str, code| {
        fake::with(|driver| {
            *driver = fake::Driver::default();
            driver.version = version;
        });
        fail(call, code);
        fake::library().map(drop).unwrap_err()
    };
    assert!(matches!(
        refusal(12_090, "", 0),
        DriverError::TooOld {
            found: CudaVersion {
                major: 12,
                minor: 9
            },
            ..
        }
    ));
    assert_eq!(refusal(13_000, "init", 100), DriverError::NoDevice);
    assert!(matches!(
        refusal(13_010, "init", 803),
        DriverError::Unusable {
            status: Status { code: 803, .. }
        }
    ));
    assert!(matches!(
        refusal(13_010, "init", 999),
        DriverError::Unusable { .. }
    ));
}

#[test]
fn missing_library_is_an_error_or_has_devices() {
    // On a machine without a driver this is the error; on others the GPUs are listed.
    match Library::load().and_then(Library::devices) {
        Ok(devices) => assert!(devices.iter().all(|device| device.sm_count > 0)),
        Err(error) => assert!(!error.is_device_lost(), "{error}"),
    }
}

#[test]
fn device_is_described() {
    let devices = fake::library().unwrap().devices().unwrap();
    let [device] = &devices[..] else {
        panic!("{devices:?}");
    };
    assert_eq!(device.name, "Fake GPU");
    assert_eq!(device.compute_capability.to_string(), "9.0");
    assert_eq!(device.driver_version.to_string(), "13.0");
    let bandwidth = device.memory_bandwidth_bytes_per_s.unwrap();
    assert!((bandwidth / 4.917e12 - 1.0).abs() < 1e-3, "{bandwidth}");
    let unknown = Context::open_on(fake::library().unwrap(), 1).map(drop);
    let (ordinal, count) = (1, 1);
    assert_eq!(unknown, Err(DriverError::UnknownDevice { ordinal, count }));
}

#[test]
fn memory_is_copied_within_its_bounds() {
    let context = open();
    let (a, b) = (context.allocate(8).unwrap(), context.allocate(8).unwrap());
    context.write(a, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    context.copy(a + 2, b, 4).unwrap();
    context.fill_zero(b + 1, 2).unwrap();
    let mut bytes = [0; 4];
    context.read(b, &mut bytes).unwrap();
    assert_eq!(bytes, [3, 0, 0, 6]);
    let mut nine = [0; 9];
    let outside = [
        context.write(a, &nine),
        context.read(a, &mut nine),
        context.read(a + 7, &mut bytes),
        context.copy(a, b + 5, 4),
        context.copy(a + 5, b, 4),
        context.fill_zero(b, 9),
        context.fill_zero(b, u64::MAX),
        context.fill_zero(7, 1),
        context.free(a + 1),
    ];
    for result in outside {
        assert!(
            matches!(result, Err(DriverError::NotAllocated { .. })),
            "{result:?}"
        );
    }
    assert_eq!(context.allocated_bytes(), 16);
    context.free(a).unwrap();
    assert!(context.write(a, &[1]).is_err(), "it was freed");
    // Nothing to copy is no error.
    context.write(0, &[]).unwrap();
    context.copy(0, 0, 0).unwrap();
}

#[test]
fn pinned_buffer_is_copied_both_ways() {
    let context = open();
    let device = context.allocate(6).unwrap();
    let mut pinned = context.pinned(8).unwrap();
    assert_eq!(pinned.as_slice(), [0; 8]);
    pinned.as_mut_slice()[2..4].copy_from_slice(&[7, 9]);
    context.write_async(device, &pinned, 2..4).unwrap();
    // SAFETY: the fake driver copies at once.
    unsafe { context.read_async(device, &pinned, 6..8) }.unwrap();
    assert_eq!(pinned.as_slice(), [0, 0, 7, 9, 0, 0, 7, 9]);
    let beyond = context.write_async(device, &pinned, 4..9);
    let (end, capacity) = (9, 8);
    assert_eq!(beyond, Err(DriverError::PinnedRange { end, capacity }));
    let too_long = context.write_async(device, &pinned, 0..7);
    assert!(matches!(too_long, Err(DriverError::NotAllocated { .. })));
}

#[test]
fn reserved_addresses_are_committed_in_parts() {
    const PART: u64 = fake::GRANULARITY as u64;
    let context = open();
    let range = context.reserve(4 * PART - 1).unwrap();
    assert_eq!(context.allocated_bytes(), 0);
    let bytes = [7; PART as usize];
    assert!(context.write(range, &bytes).is_err(), "it has no memory");
    for part in [0, 1, 3] {
        context.commit(range + part * PART, PART).unwrap();
    }
    assert_eq!(context.allocated_bytes(), 3 * PART);
    // Across the parts that are next to each other, not across the gap.
    context.write(range + PART / 2, &bytes).unwrap();
    assert!(context.write(range + PART + 1, &bytes).is_err());
    for (address, len) in [
        (range, PART),
        (range + PART, 0),
        (range + 2 * PART, PART - 1),
    ] {
        assert!(context.commit(address, len).is_err(), "{}", address - range);
    }
    let beyond = context.commit(range + 3 * PART, 2 * PART);
    assert!(matches!(beyond, Err(DriverError::NotAllocated { .. })));
    assert!(context.free(range + PART).is_err(), "a part is decommitted");
    assert!(context.decommit(range, 2 * PART).is_err());
    context.decommit(range + PART, PART).unwrap();
    assert!(context.write(range + PART / 2, &bytes).is_err());
    context.commit(range + PART, 2 * PART).unwrap();
    context
        .write(range + PART / 2, &[1; 3 * PART as usize])
        .unwrap();
    fail("memory_create", OUT_OF_MEMORY);
    let other = context.reserve(PART).unwrap();
    let full = context.commit(other, PART);
    assert_eq!(full, Err(DriverError::OutOfMemory { wanted: PART }));
    context.free(range).unwrap();
    assert_eq!(context.allocated_bytes(), 0);
    assert_eq!(fake::with(|driver| driver.allocated()), 1);
    drop(context);
    assert_eq!(fake::with(|driver| driver.allocated()), 0);
}

#[test]
fn out_of_memory_is_told_with_its_size() {
    let context = open();
    let wanted = 2 << 20;
    let full = context.allocate(wanted);
    assert_eq!(full, Err(DriverError::OutOfMemory { wanted }));
    assert_eq!(context.memory_info().unwrap(), (1 << 20, 1 << 20));
    fail("host_allocate", OUT_OF_MEMORY);
    let full = context.pinned(10).map(drop);
    assert_eq!(full, Err(DriverError::OutOfMemory { wanted: 10 }));
    assert!(!context.is_lost());
}

#[test]
fn lost_device_is_remembered() {
    let context = open();
    fail("stream_synchronize", ILLEGAL_ADDRESS);
    let error = context.synchronize().unwrap_err();
    assert!(error.is_device_lost() && context.is_lost());
    assert!(
        error.to_string().contains("illegal memory access"),
        "{error}"
    );
}

#[test]
fn launch_checks_parameters() {
    let context = open();
    let module = context.load_module(&FATBIN).unwrap();
    let absent = module.function("absent").map(drop).unwrap_err();
    assert!(matches!(absent, DriverError::UnknownFunction { name } if name == "absent"));
    let kernel = module.function("some").unwrap();
    assert_eq!(kernel.attributes().registers, 40);
    assert_eq!(kernel.max_active_blocks(256, 0), Ok(8));
    assert!(kernel.set_max_dynamic_shared(100 << 10).is_ok());
    assert!(kernel.set_max_dynamic_shared(1 << 20).is_err());
    let first: [u8; 16] = std::array::from_fn(|index| index as u8);
    let full = LaunchConfig {
        dependent: true,
        cluster: Some([3, 1, 1]),
        ..CONFIG
    };
    // SAFETY: the fake driver runs nothing.
    let launch =
        |config, parameters: &[&[u8]]| unsafe { context.launch(&kernel, config, parameters) };
    launch(&CONFIG, &[&first, &[0; 4]]).unwrap();
    launch(&full, &[&first, &[0; 4]]).unwrap();
    for wrong in [
        &[&first[..]][..],
        &[&first, &[0; 5]],
        &[&first, &[0; 4], &[0]],
    ] {
        let refused = launch(&CONFIG, wrong).unwrap_err();
        assert!(
            matches!(refused, DriverError::Parameters { .. }),
            "{refused}"
        );
    }
    let expected = vec![([3, 1, 1], 0), ([3, 1, 1], 2)];
    fake::with(|driver| {
        assert_eq!(driver.launches, expected);
        assert_eq!(driver.parameters, first);
    });
}

#[test]
fn invalid_images_are_refused() {
    let context = open();
    let mut longer = FATBIN;
    longer[8] = 9;
    for bytes in [&FATBIN[..15], &[0; 64], &longer] {
        let refused = context.load_module(bytes).map(drop);
        assert!(matches!(refused, Err(DriverError::InvalidImage { .. })));
    }
    fail("module_load", 209);
    let refused = context.load_module(&FATBIN).map(drop);
    assert!(matches!(
        refused,
        Err(DriverError::UnsupportedArchitecture { .. })
    ));
}

#[test]
fn capture_ends_however_recording_ends() {
    let context = open();
    let module = context.load_module(&FATBIN).unwrap();
    let kernel = module.function("some").unwrap();
    let graph = context.capture(|context| {
        // SAFETY: the fake driver runs nothing.
        unsafe { context.launch(&kernel, &CONFIG, &[&[0; 16], &[0; 4]]) }
    });
    let graph = graph.unwrap();
    assert_eq!(graph.nodes(), 1);
    // SAFETY: as above.
    unsafe { context.launch_graph(&graph) }.unwrap();
    let failed = context.capture(|_| Err(DriverError::NoDevice)).map(drop);
    assert_eq!(failed, Err(DriverError::NoDevice));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        context.capture::<DriverError>(|_| panic!("recording fails"))
    }));
    assert!(panicked.is_err());
    fail("graph_instantiate", OUT_OF_MEMORY);
    let failed = context.capture::<DriverError>(|_| Ok(())).map(drop);
    assert!(failed.is_err());
    let count =
        |name| fake::with(|driver| driver.calls.iter().filter(|call| **call == name).count());
    assert_eq!(count("stream_begin_capture"), 4);
    assert_eq!(count("stream_end_capture"), 4);
    assert_eq!(count("graph_destroy"), 4);
}

#[test]
fn events_measure_time() {
    let context = open();
    let (start, end) = (context.event().unwrap(), context.event().unwrap());
    start.record().unwrap();
    end.record().unwrap();
    assert_eq!(end.elapsed_ms(&start), Ok(1.5));
    assert_eq!(end.is_complete(), Ok(true));
    fail("event_query", super::ffi::NOT_READY);
    assert_eq!(end.is_complete(), Ok(false));
}

#[test]
fn dropping_everything_frees_everything() {
    let context = open();
    context.allocate(64).unwrap();
    let range = context.reserve(1).unwrap();
    context.commit(range, fake::GRANULARITY as u64).unwrap();
    let pinned = context.pinned(64).unwrap();
    let event = context.event().unwrap();
    let module = context.load_module(&FATBIN).unwrap();
    let function = module.function("some").unwrap();
    let graph = context.capture::<DriverError>(|_| Ok(())).unwrap();
    let again = context.clone();
    drop((context, again, module));
    assert!(
        fake::with(|driver| driver.alive) > 0,
        "the others hold the context"
    );
    drop((pinned, event, graph));
    assert_eq!(fake::with(|driver| driver.allocated()), 3);
    drop(function);
    assert_eq!(fake::with(|driver| driver.alive), 0);
    assert_eq!(fake::with(|driver| driver.allocated()), 0);
    assert_eq!(
        fake::with(|driver| driver.calls.last().copied()),
        Some("context_release")
    );
}

#[test]
fn failed_open_releases_the_context() {
    let library = fake::library().unwrap();
    fail("stream_create", OUT_OF_MEMORY);
    assert!(Context::open_on(library, 0).is_err());
    assert_eq!(fake::with(|driver| driver.alive), 0);
}
