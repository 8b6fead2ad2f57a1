//! What the machine has to give.

use std::path::Path;

pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory this process may use: the machine's, or less where a container says so. `None` where
/// the system does not tell.
pub fn memory_bytes() -> Option<u64> {
    let limits = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let limits = limits
        .iter()
        .filter_map(|path| read_number(Path::new(path)));
    physical_memory().into_iter().chain(limits).min()
}

fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// `max`, which stands for no limit, is no number.
fn read_number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
