//! The machine's cores and memory.

use std::path::{Path, PathBuf};

use loquat_session::{OpenError, SessionOptions};

use crate::affinity;

const MAX_THREADS: usize = 1024;

/// Version 1 of control groups writes "no limit" as the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// One per core that this process may use: hardware threads of one core share the units that
/// computing needs most.
pub fn threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    affinity::cores().map_or(allowed, |cores| cores.len().min(allowed))
}

/// The requested number of threads, or the machine's.
pub fn resolve_threads(options: &SessionOptions) -> Result<usize, OpenError> {
    let threads = options.threads.unwrap_or_else(threads);
    if (1..=MAX_THREADS).contains(&threads) {
        return Ok(threads);
    }
    Err(OpenError::Option {
        option: "threads",
        found: threads.to_string(),
        expected: format!("from 1 to {MAX_THREADS}"),
    })
}

/// Memory this process may use: the machine's, or the limit of a container or another control
/// group. `None` if the system does not report it.
pub fn memory_bytes() -> Option<u64> {
    let memory = MachineMemory::now();
    memory.physical.into_iter().chain(memory.limit).min()
}

/// Memory in bytes; `None` if the system does not report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineMemory {
    pub physical: Option<u64>,
    /// Free without swapping now, according to the machine and every control group around this
    /// process.
    pub available: Option<u64>,
    /// The limit of a container or another control group, if there is one.
    pub limit: Option<u64>,
    pub swap: Option<u64>,
}

impl MachineMemory {
    pub fn now() -> Self {
        let meminfo = read(Path::new("/proc/meminfo")).unwrap_or_default();
        let files = group_files(&own_groups(), &MEMORY_LIMIT).into_iter();
        let groups: Vec<MemoryGroup> = files.filter_map(|path| MemoryGroup::at(&path)).collect();
        Self::from_meminfo(&meminfo, &groups)
    }

    fn from_meminfo(meminfo: &str, groups: &[MemoryGroup]) -> Self {
        let left = groups.iter().filter_map(MemoryGroup::left);
        let free = meminfo_bytes(meminfo, "MemAvailable:");
        Self {
            physical: meminfo_bytes(meminfo, "MemTotal:"),
            available: free.into_iter().chain(left).min(),
            limit: groups.iter().map(|group| group.limit).min(),
            swap: meminfo_bytes(meminfo, "SwapTotal:"),
        }
    }
}

/// A control group that bounds memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryGroup {
    limit: u64,
    /// Memory used by all of its processes, if reported.
    used: Option<u64>,
}

impl MemoryGroup {
    /// From the file with its limit; its usage is in the same directory. `None` if it has no limit.
    fn at(limit: &Path) -> Option<Self> {
        let sibling = |name| read(&limit.with_file_name(name));
        let usage = sibling("memory.current").or_else(|| sibling("memory.usage_in_bytes"));
        let stat = sibling("memory.stat").unwrap_or_default();
        Some(Self {
            limit: group_limit(&read(limit)?)?,
            used: usage.and_then(|usage| group_used(&usage, &stat)),
        })
    }

    fn left(&self) -> Option<u64> {
        Some(self.limit.saturating_sub(self.used?))
    }
}

/// Without cached file pages: they are available, as for `MemAvailable`.
fn group_used(usage: &str, stat: &str) -> Option<u64> {
    let pages = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bytes| bytes.trim().parse().ok())
    };
    // Including nested groups, which version 1 calls the total.
    let pages_of = |v1: &str, v2: &str| -> u64 { pages(v1).or_else(|| pages(v2)).unwrap_or(0) };
    let inactive = pages_of("total_inactive_file ", "inactive_file ");
    let active = pages_of("total_active_file ", "active_file ");
    let usage: u64 = usage.trim().parse().ok()?;
    Some(usage.saturating_sub(inactive.saturating_add(active)))
}

/// The processors that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MachineCores {
    /// Hardware threads; `None` if the system does not report them.
    pub processors: Option<usize>,
    /// Physical cores; `None` if the system does not report them.
    pub cores: Option<usize>,
    /// The CPU quota of a control group in processors, if there is one.
    pub quota: Option<f64>,
    /// The default number of a session's threads.
    pub threads: usize,
}

impl MachineCores {
    pub fn now() -> Self {
        let quotas = group_files(&own_groups(), &CPU_QUOTA).into_iter();
        let quotas = quotas.filter_map(|path| {
            // Version 1 has the period in another file.
            let period = read(&path.with_file_name("cpu.cfs_period_us"));
            group_quota(&read(&path)?, period.as_deref())
        });
        Self {
            processors: affinity::processor_count(),
            cores: affinity::cores().map(|cores| cores.len()),
            quota: quotas.reduce(f64::min),
            threads: threads(),
        }
    }
}

/// The processor's name, if the system reports it.
pub fn processor_name() -> Option<String> {
    let text = read(Path::new("/proc/cpuinfo"))?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.trim().to_owned())
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn own_groups() -> String {
    read(Path::new("/proc/self/cgroup")).unwrap_or_default()
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(name))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The file of a limit in each version of control groups.
struct GroupFile {
    controller: &'static str,
    v1: &'static str,
    v2: &'static str,
}

const MEMORY_LIMIT: GroupFile = GroupFile {
    controller: "memory",
    v1: "memory.limit_in_bytes",
    v2: "memory.max",
};

const CPU_QUOTA: GroupFile = GroupFile {
    controller: "cpu",
    v1: "cpu.cfs_quota_us",
    v2: "cpu.max",
};

/// The files with limits for a process in these control groups. The limits of enclosing groups
/// apply too; inside a container the outermost visible group is the container's own.
fn group_files(groups: &str, file: &GroupFile) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let root = Path::new("/sys/fs/cgroup");
        let (root, name) = match controllers {
            "" => (root.to_owned(), file.v2),
            _ if controllers
                .split(',')
                .any(|controller| controller == file.controller) =>
            {
                (root.join(file.controller), file.v1)
            }
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|at| root.join(at).join(name)));
    }
    files
}

fn group_limit(text: &str) -> Option<u64> {
    // `max` means no limit and does not parse.
    let limit = text.trim().parse().ok();
    limit.filter(|limit| *limit < NO_LIMIT)
}

/// The quota in processors: `quota period` in version 2, where quota may be `max`;
/// in version 1 the quota alone, or -1.
fn group_quota(text: &str, period_file: Option<&str>) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next().or(period_file)?.trim().parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_memory_is_read_in_bytes() {
        let table = [
            (
                "MemTotal:       24684100 kB\nMemFree: 1 kB\n",
                Some(24684100 << 10),
            ),
            ("MemFree: 1 kB\nMemTotal: 8 kB\n", Some(8 << 10)),
            ("MemTotal: 18446744073709551615 kB\n", None),
            ("MemTotal: much\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(meminfo_bytes(text, "MemTotal:"), expected, "{text:?}");
        }
    }

    #[test]
    fn enclosing_groups_limits_count() {
        let v2 = "0::/user.slice/a.scope\n";
        let v1 = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/7f\n1:name=systemd:/\n";
        let table: [(&str, &[&str]); 4] = [
            (
                v2,
                &[
                    "/sys/fs/cgroup/user.slice/a.scope/memory.max",
                    "/sys/fs/cgroup/user.slice/memory.max",
                    "/sys/fs/cgroup/memory.max",
                ],
            ),
            (
                v1,
                &[
                    "/sys/fs/cgroup/memory/docker/7f/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                ],
            ),
            ("0::/\n", &["/sys/fs/cgroup/memory.max"]),
            ("nonsense\n\n3:cpuset:/memory\n", &[]),
        ];
        for (groups, expected) in table {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            let files = group_files(groups, &MEMORY_LIMIT);
            assert_eq!(files, expected, "{groups:?}");
        }
        let cpu = group_files("5:cpu,cpuacct:/x\n", &CPU_QUOTA);
        assert_eq!(cpu[0], Path::new("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us"));
    }

    #[test]
    fn available_memory_is_the_smallest_remainder() {
        const MACHINE: &str = "MemTotal: 1000 kB\nMemAvailable: 600 kB\n";
        let group = |limit: u64, used: Option<u64>| MemoryGroup {
            limit: limit << 10,
            used: used.map(|used| used << 10),
        };
        for (meminfo, groups, available, limit) in [
            (MACHINE, vec![], Some(600), None),
            (MACHINE, vec![group(500, Some(100))], Some(400), Some(500)),
            (MACHINE, vec![group(900, Some(100))], Some(600), Some(900)),
            (MACHINE, vec![group(500, Some(501))], Some(0), Some(500)),
            (MACHINE, vec![group(500, None)], Some(600), Some(500)),
            (
                MACHINE,
                vec![group(300, Some(10)), group(400, Some(350))],
                Some(50),
                Some(300),
            ),
            ("", vec![group(500, Some(100))], Some(400), Some(500)),
            ("", vec![], None, None),
        ] {
            let memory = MachineMemory::from_meminfo(meminfo, &groups);
            let expected = [available, limit].map(|size| size.map(|size: u64| size << 10));
            assert_eq!([memory.available, memory.limit], expected, "{groups:?}");
        }
    }

    #[test]
    fn cached_file_pages_are_not_used_memory() {
        for (usage, stat, used) in [
            (
                "1000\n",
                "anon 300\ninactive_file 500\nactive_file 200\n",
                Some(300),
            ),
            (
                "1000\n",
                "inactive_file 1\nactive_file 2\ntotal_inactive_file 500\ntotal_active_file 200\n",
                Some(300),
            ),
            ("1000\n", "", Some(1000)),
            ("1000\n", "inactive_file 5000\n", Some(0)),
            ("much\n", "", None),
        ] {
            assert_eq!(group_used(usage, stat), used, "{usage:?} {stat:?}");
        }
    }

    #[test]
    fn quota_is_divided_by_period() {
        let table = [
            ("150000 100000\n", None, Some(1.5)),
            ("max 100000\n", None, None),
            ("50000\n", Some("100000\n"), Some(0.5)),
            ("-1\n", Some("100000\n"), None),
            ("50000\n", None, None),
            ("50000 0\n", None, None),
            ("", Some("100000"), None),
        ];
        for (text, period, expected) in table {
            assert_eq!(group_quota(text, period), expected, "{text:?} {period:?}");
        }
    }

    #[test]
    fn missing_limit_is_none() {
        let table = [
            ("536870912\n", Some(512 << 20)),
            ("max\n", None),
            ("9223372036854771712\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(group_limit(text), expected, "{text:?}");
        }
    }
}
