//! Memory of a process.

/// Resident bytes of this process, if the system reports them.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("self", RESIDENT)
}

/// Peak resident bytes of this process.
pub fn peak_resident_bytes() -> Option<u64> {
    status_bytes("self", PEAK)
}

/// Resident bytes of another process.
pub fn resident_bytes_of(process: u32) -> Option<u64> {
    status_bytes(&process.to_string(), RESIDENT)
}

const RESIDENT: &str = "VmRSS:";
const PEAK: &str = "VmHWM:";

fn status_bytes(process: &str, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    parse(&status.ok()?, field)
}

fn parse(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_field_is_parsed() {
        let status = "Name:\tloquat\nVmHWM:\t  99 kB\nVmRSS:\t  2048 kB\nThreads:\t3\n";
        assert_eq!(parse(status, RESIDENT), Some(2 << 20));
        assert_eq!(parse(status, PEAK), Some(99 << 10));
        assert_eq!(parse("VmRSS:\tmany kB\n", RESIDENT), None);
        assert_eq!(parse("VmHWM:\t99 kB\n", RESIDENT), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn own_process_is_resident() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(peak_resident_bytes() >= resident_bytes());
        assert!(resident_bytes_of(std::process::id()).unwrap() > 1 << 20);
    }
}
