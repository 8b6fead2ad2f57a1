//! Which processors compute: one of each physical core.
//!
//! A session with a thread for every core restricts its workers to these. The system may still move
//! them between cores: a pinned thread waits for other work on its core, which costs more
//! than moving (ADR 0005 has the numbers). The system alone places a session with fewer threads,
//! since it knows the other sessions and processes.

#[cfg(target_os = "linux")]
pub use linux::{cores, processor_count, restrict_to};

/// The processor numbers of this process, one for each physical core; `None` if the system does not
/// report them.
#[cfg(not(target_os = "linux"))]
pub fn cores() -> Option<Vec<usize>> {
    None
}

/// The hardware threads that this process may use, if known.
#[cfg(not(target_os = "linux"))]
pub fn processor_count() -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
pub fn restrict_to(_processors: &[usize]) {}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::read_to_string;

    /// Processors' numbers, one for each physical core that this process may use; `None` if
    /// the system does not report them.
    pub fn cores() -> Option<Vec<usize>> {
        let siblings = |processor: usize| {
            let topology = format!("/sys/devices/system/cpu/cpu{processor}/topology");
            let list = read_to_string(format!("{topology}/thread_siblings_list")).ok()?;
            parse_list(&list)
        };
        one_of_each(&allowed()?, siblings)
    }

    /// Restricts the calling thread to these processors. Best effort: the thread also works if the
    /// system refuses.
    pub fn restrict_to(processors: &[usize]) {
        // SAFETY: zeros are the empty set; the numbers come from a set of this size, and the
        // system only reads the set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for processor in processors {
                libc::CPU_SET(*processor, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }

    /// The hardware threads that this process may use, if known.
    pub fn processor_count() -> Option<usize> {
        allowed().map(|processors| processors.len())
    }

    /// The processors on which the calling thread and its children may run.
    fn allowed() -> Option<Vec<usize>> {
        // SAFETY: zeros are the empty set, of which the system writes no more than its size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of::<libc::cpu_set_t>();
            (libc::sched_getaffinity(0, size, &mut set) == 0).then_some(set)?
        };
        let all = 0..libc::CPU_SETSIZE as usize;
        // SAFETY: every number is below the size of the set.
        Some(
            all.filter(|at| unsafe { libc::CPU_ISSET(*at, &set) })
                .collect(),
        )
    }

    /// The first of those `allowed` among each core's `siblings`.
    fn one_of_each(
        allowed: &[usize],
        siblings: impl Fn(usize) -> Option<Vec<usize>>,
    ) -> Option<Vec<usize>> {
        let mut cores = Vec::new();
        for processor in allowed {
            let siblings = siblings(*processor)?;
            let first = siblings.iter().find(|sibling| allowed.contains(sibling))?;
            if first == processor {
                cores.push(*processor);
            }
        }
        Some(cores)
    }

    /// A list such as `0-3,8,10-11`.
    fn parse_list(text: &str) -> Option<Vec<usize>> {
        let mut numbers = Vec::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if last >= libc::CPU_SETSIZE as usize {
                return None;
            }
            numbers.extend(first..=last);
        }
        Some(numbers)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn processor_lists_are_parsed() {
            let table: [(&str, Option<&[usize]>); 7] = [
                ("0\n", Some(&[0])),
                ("0,64\n", Some(&[0, 64])),
                ("0-3,8,10-11\n", Some(&[0, 1, 2, 3, 8, 10, 11])),
                ("", None),
                ("0-\n", None),
                ("x", None),
                ("0-18446744073709551615", None),
            ];
            for (text, expected) in table {
                assert_eq!(parse_list(text).as_deref(), expected, "{text:?}");
            }
        }

        #[test]
        fn sibling_processors_count_once() {
            // Processors n and n + 4 are one core.
            let twins = |processor: usize| Some(vec![processor % 4, processor % 4 + 4]);
            let table: [(&[usize], &[usize]); 4] = [
                (&[0, 1, 2, 3, 4, 5, 6, 7], &[0, 1, 2, 3]),
                (&[4, 5, 6], &[4, 5, 6]),
                (&[1, 5, 6], &[1, 6]),
                (&[], &[]),
            ];
            for (allowed, expected) in table {
                assert_eq!(one_of_each(allowed, twins).as_deref(), Some(expected));
            }
            assert_eq!(one_of_each(&[0], |_| None), None);
        }

        #[test]
        fn thread_is_restricted_to_processors() {
            std::thread::spawn(|| {
                let before = allowed().unwrap();
                restrict_to(&before[..1]);
                assert_eq!(allowed().unwrap(), before[..1]);
            })
            .join()
            .unwrap();
        }
    }
}
