//! The driver layer on a GPU. Without one, each test says that it was skipped;
//! `LOQUAT_REQUIRE_CUDA=1` makes that a failure.

use loquat_cuda::CudaBackend;
use loquat_cuda::driver::{Context, DriverError, Event, LaunchConfig};
use loquat_cuda::kernels::{KernelError, Kernels};
use loquat_session::{Backend, Probe};

const CONFIG: LaunchConfig = LaunchConfig {
    grid: [40, 1, 1],
    block: [256, 1, 1],
    shared_bytes: 0,
    dependent: false,
    cluster: None,
};
const COUNT: u32 = 10_000;

/// The first GPU with its kernels, or `None` to skip the test.
fn open() -> Option<(Context, Kernels)> {
    if let Probe::Unavailable { why, .. } = CudaBackend::AUTO.probe() {
        let required = std::env::var("LOQUAT_REQUIRE_CUDA").is_ok_and(|value| value == "1");
        assert!(!required, "{why}");
        eprintln!("skipped: {why}");
        return None;
    }
    let context = Context::open(0).unwrap();
    let kernels = Kernels::load(&context).unwrap();
    Some((context, kernels))
}

/// The parameter struct of `kernels/self_check.cu`.
fn parameters(values: u64, count: u32, operand: u32) -> Vec<u8> {
    let numbers = [count.to_ne_bytes(), operand.to_ne_bytes()];
    [&values.to_ne_bytes()[..], &numbers.concat()].concat()
}

fn read(context: &Context, address: u64, count: u32) -> Vec<u32> {
    let mut bytes = vec![0; count as usize * 4];
    context.read(address, &mut bytes).unwrap();
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
        .collect()
}

fn launch(
    context: &Context,
    kernels: &Kernels,
    name: &str,
    config: LaunchConfig,
    parameters: &[u8],
) -> Result<(), DriverError> {
    let kernel = kernels.get(name).unwrap();
    // SAFETY: the tests pass addresses of at least as many words as they count.
    unsafe { context.launch(kernel, &config, &[parameters]) }
}

#[test]
fn memory_holds_what_is_written() {
    let Some((context, _)) = open() else { return };
    let (free, total) = context.memory_info().unwrap();
    assert!(free > 0 && free <= total && total <= context.device().total_memory);
    let bytes: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
    let (a, b) = (context.allocate(200_000), context.allocate(100_000));
    let (a, b) = (a.unwrap(), b.unwrap());
    context.write(a + 8, &bytes).unwrap();
    context.copy(a + 8, b, 100_000).unwrap();
    context.fill_zero(b + 5, 10).unwrap();
    let mut found = vec![0; 100_000];
    context.read(b, &mut found).unwrap();
    assert_eq!(found[..5], bytes[..5]);
    assert_eq!(found[5..15], [0; 10]);
    assert_eq!(found[15..], bytes[15..]);
    let mut pinned = context.pinned(100_000).unwrap();
    pinned.as_mut_slice().fill(7);
    context.write_async(a, &pinned, 0..100_000).unwrap();
    context.read(a, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    let wanted = 2 * context.device().total_memory;
    assert_eq!(
        context.allocate(wanted),
        Err(DriverError::OutOfMemory { wanted })
    );
    context.allocate(1 << 20).unwrap();
    drop(context);
}

#[test]
fn reserved_addresses_are_committed_in_parts() {
    let Some((context, _)) = open() else { return };
    let part = context.granularity().unwrap();
    let range = context.reserve(64 * part).unwrap();
    for index in [1, 2] {
        context.commit(range + index * part, part).unwrap();
    }
    assert_eq!(context.allocated_bytes(), 2 * part);
    let bytes: Vec<u8> = (0..part).map(|index| (index % 249) as u8).collect();
    context.write(range + part * 3 / 2, &bytes).unwrap();
    let mut found = vec![0; bytes.len()];
    context.read(range + part * 3 / 2, &mut found).unwrap();
    assert_eq!(found, bytes);
    assert!(
        context.commit(range + part, part).is_err(),
        "it is committed"
    );
    context.decommit(range + part, part).unwrap();
    context.commit(range + part, part).unwrap();
    assert!(context.write(range + 3 * part, &[1]).is_err());
    context.free(range).unwrap();
    assert!(!context.is_lost());
}

#[test]
fn dependent_launches_see_earlier_results() {
    let Some((context, kernels)) = open() else {
        return;
    };
    let values = context.allocate(u64::from(COUNT) * 4).unwrap();
    let dependent = LaunchConfig {
        dependent: context.device().compute_capability.major >= 9,
        ..CONFIG
    };
    for _ in 0..100 {
        launch(
            &context,
            &kernels,
            "self_check_fill",
            CONFIG,
            &parameters(values, COUNT, 5),
        )
        .unwrap();
        for factor in [3, 7] {
            let parameters = parameters(values, COUNT, factor);
            launch(
                &context,
                &kernels,
                "self_check_multiply",
                dependent,
                &parameters,
            )
            .unwrap();
        }
        let found = read(&context, values, COUNT);
        assert!(
            found
                .iter()
                .zip(5..)
                .all(|(found, start)| *found == start * 21)
        );
    }
}

#[test]
fn captured_graph_repeats_its_launches() {
    let Some((context, kernels)) = open() else {
        return;
    };
    let values = context.allocate(u64::from(COUNT) * 4).unwrap();
    let dependent = LaunchConfig {
        dependent: context.device().compute_capability.major >= 9,
        ..CONFIG
    };
    let graph = context.capture(|context| {
        for _ in 0..4 {
            let parameters = parameters(values, COUNT, 3);
            launch(
                context,
                &kernels,
                "self_check_multiply",
                dependent,
                &parameters,
            )?;
        }
        Ok::<(), DriverError>(())
    });
    let graph = graph.unwrap();
    assert_eq!(graph.nodes(), 4);
    let start = parameters(values, COUNT, 1);
    launch(&context, &kernels, "self_check_fill", CONFIG, &start).unwrap();
    let (begin, end) = (context.event().unwrap(), context.event().unwrap());
    begin.record().unwrap();
    for _ in 0..2 {
        // SAFETY: `values` is allocated.
        unsafe { context.launch_graph(&graph) }.unwrap();
    }
    end.record().unwrap();
    let elapsed = Event::elapsed_ms(&end, &begin).unwrap();
    assert!(elapsed > 0.0 && elapsed < 1000.0, "{elapsed} ms");
    let found = read(&context, values, COUNT);
    let product = 3u32.pow(8);
    assert!(
        found
            .iter()
            .zip(1..)
            .all(|(found, start): (&u32, u32)| { *found == start.wrapping_mul(product) })
    );
    // A call that cannot be recorded is an error, and the stream works afterwards.
    assert!(context.capture(Context::synchronize).is_err());
    assert!(!context.is_lost());
    assert_eq!(read(&context, values, 1), [product]);
}

#[test]
fn cluster_and_shared_memory_arrive() {
    let Some((context, kernels)) = open() else {
        return;
    };
    let values = context.allocate(40 * 4).unwrap();
    let kernel = kernels.get("self_check_cluster").unwrap();
    let shared_bytes = 100 << 10;
    let size = if context.device().compute_capability.major >= 9 {
        8
    } else {
        1
    };
    let config = LaunchConfig {
        shared_bytes,
        cluster: (size > 1).then_some([size, 1, 1]),
        ..CONFIG
    };
    let last_word = shared_bytes / 4 - 1;
    let parameters = parameters(values, 40, last_word);
    let refused = launch(
        &context,
        &kernels,
        "self_check_cluster",
        config,
        &parameters,
    );
    assert!(refused.is_err(), "more than 48 KiB must be allowed first");
    kernel.set_max_dynamic_shared(shared_bytes).unwrap();
    launch(
        &context,
        &kernels,
        "self_check_cluster",
        config,
        &parameters,
    )
    .unwrap();
    assert_eq!(read(&context, values, 40), [size; 40]);
    let attributes = kernel.attributes();
    assert!(
        attributes.registers > 0 && attributes.local_bytes == 0,
        "{attributes:?}"
    );
    let blocks = kernel.max_active_blocks(256, shared_bytes).unwrap();
    assert!((1..=8).contains(&blocks), "{blocks}");
}

#[test]
fn lost_device_is_an_error() {
    // Other tests of this process use the same context, so this one has a process of its own.
    const ALONE: &str = "LOQUAT_LOSE_THE_DEVICE";
    if std::env::var_os(ALONE).is_none() {
        if open().is_none() {
            return;
        }
        let program = std::env::current_exe().unwrap();
        let name = "lost_device_is_an_error";
        let mut test = std::process::Command::new(program);
        let status = test.args(["--exact", name]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    let Some((context, kernels)) = open() else {
        return;
    };
    let nowhere = parameters(8, COUNT, 1);
    launch(&context, &kernels, "self_check_fill", CONFIG, &nowhere).unwrap();
    let error = context.synchronize().unwrap_err();
    assert!(error.is_device_lost() && context.is_lost(), "{error}");
    assert!(context.allocate(1).is_err());
    drop((context, kernels));
    // Whether a new context works depends on the fault; either way it is no crash.
    match Context::open(0)
        .map_err(KernelError::from)
        .and_then(|context| {
            let kernels = Kernels::load(&context)?;
            Ok((context, kernels))
        }) {
        Ok((context, kernels)) => {
            let values = context.allocate(u64::from(COUNT) * 4).unwrap();
            let fill = parameters(values, COUNT, 9);
            launch(&context, &kernels, "self_check_fill", CONFIG, &fill).unwrap();
            assert_eq!(read(&context, values, 1), [9]);
        }
        Err(error) => eprintln!("the device cannot be opened again: {error}"),
    }
}
