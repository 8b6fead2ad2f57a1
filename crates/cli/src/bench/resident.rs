//! How much of the process lies in memory.

/// Resident bytes, where the system tells.
pub fn resident_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found_and_read() {
        let status = "Name:\tloquat\nVmHWM:\t  99 kB\nVmRSS:\t  2048 kB\nThreads:\t3\n";
        assert_eq!(parse(status), Some(2 << 20));
        assert_eq!(parse("VmRSS:\tmany kB\n"), None);
        assert_eq!(parse("VmHWM:\t99 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_running_test_lies_in_memory() {
        assert!(resident_bytes().unwrap() > 1 << 20);
    }
}
