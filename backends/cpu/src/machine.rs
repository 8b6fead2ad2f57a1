//! What the machine has to give.

use std::path::{Path, PathBuf};

use loquat_session::{OpenError, SessionOptions};

use crate::affinity;

const MAX_THREADS: usize = 1024;

/// Version 1 of control groups writes "no limit" as the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// As many as this process may run at once, one to a core: what two threads of one core share
/// is what computing is short of.
pub fn threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    affinity::cores().map_or(allowed, |cores| cores.len().min(allowed))
}

/// As many as were asked for, or as the machine has.
pub fn wanted_threads(options: &SessionOptions) -> Result<usize, OpenError> {
    let wanted = options.threads.unwrap_or_else(threads);
    if (1..=MAX_THREADS).contains(&wanted) {
        return Ok(wanted);
    }
    Err(OpenError::Option {
        option: "threads",
        found: wanted.to_string(),
        expected: format!("from 1 to {MAX_THREADS}"),
    })
}

/// Memory this process may use: the machine's, or less where a container or another control
/// group says so. `None` where the system does not tell.
pub fn memory_bytes() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let physical = read(Path::new("/proc/meminfo")).and_then(|text| physical_memory(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = limit_files(&groups).into_iter();
    let limits = limits.filter_map(|path| group_limit(&read(&path)?));
    physical.into_iter().chain(limits).min()
}

fn physical_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Where limits may stand for a process in these control groups. A group is bound by those
/// around it; inside a container the outermost one in sight is the container's own.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(
            group
                .ancestors()
                .map(|at| Path::new(root).join(at).join(file)),
        );
    }
    files
}

fn group_limit(text: &str) -> Option<u64> {
    // `max`, which stands for no limit, is no number.
    let limit = text.trim().parse().ok();
    limit.filter(|limit| *limit < NO_LIMIT)
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
            assert_eq!(physical_memory(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_groups_limit_and_those_around_it_count() {
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
            assert_eq!(limit_files(groups), expected, "{groups:?}");
        }
    }

    #[test]
    fn no_limit_is_none() {
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
