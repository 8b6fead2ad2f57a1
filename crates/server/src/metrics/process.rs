//! What the system says about a process.

/// Bytes of this process that lie in memory, where the system tells.
pub fn resident_bytes() -> Option<u64> {
    resident("/proc/self/status")
}

/// The same of another process.
pub fn resident_bytes_of(process: u32) -> Option<u64> {
    resident(&format!("/proc/{process}/status"))
}

fn resident(status: &str) -> Option<u64> {
    parse(&std::fs::read_to_string(status).ok()?)
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
        assert!(resident_bytes_of(std::process::id()).unwrap() > 1 << 20);
    }
}
