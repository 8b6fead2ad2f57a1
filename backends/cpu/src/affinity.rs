//! Which processors compute: one of each physical core.
//!
//! Workers are held to these where a session has a thread for every core. The system may still
//! move them from core to core: a thread held to one core of its own is stuck behind whatever
//! else runs there, which costs more than moving does (ADR 0005 has the numbers). A session with
//! fewer threads is placed by the system alone, which knows what other sessions and processes
//! are doing.

#[cfg(target_os = "linux")]
pub use linux::{cores, hold_to, processors};

/// Processors' numbers, one for each physical core that this process may use; `None` where the
/// system does not tell.
#[cfg(not(target_os = "linux"))]
pub fn cores() -> Option<Vec<usize>> {
    None
}

/// How many this process may use, siblings of one core among them; likewise.
#[cfg(not(target_os = "linux"))]
pub fn processors() -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
pub fn hold_to(_processors: &[usize]) {}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::read_to_string;

    /// Processors' numbers, one for each physical core that this process may use; `None` where
    /// the system does not tell.
    pub fn cores() -> Option<Vec<usize>> {
        let siblings = |processor: usize| {
            let topology = format!("/sys/devices/system/cpu/cpu{processor}/topology");
            let list = read_to_string(format!("{topology}/thread_siblings_list")).ok()?;
            parse_list(&list)
        };
        one_of_each(&allowed()?, siblings)
    }

    /// Holds the calling thread to these processors. It is a wish: where the system refuses, the
    /// thread computes as well.
    pub fn hold_to(processors: &[usize]) {
        // SAFETY: zeros are the empty set; the numbers come from a set of this size, and the
        // system only reads what it is given.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for processor in processors {
                libc::CPU_SET(*processor, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }

    /// How many this process may use, siblings of one core among them; likewise.
    pub fn processors() -> Option<usize> {
        allowed().map(|processors| processors.len())
    }

    /// Where the calling thread may run, and so those that it starts.
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
        fn lists_of_processors_are_read() {
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
        fn each_core_counts_once() {
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
        fn a_thread_is_held_where_it_may_run_anyway() {
            std::thread::spawn(|| {
                let before = allowed().unwrap();
                hold_to(&before[..1]);
                assert_eq!(allowed().unwrap(), before[..1]);
            })
            .join()
            .unwrap();
        }
    }
}
