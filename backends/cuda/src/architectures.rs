//! GPU architectures that kernels are compiled for. The build script uses this file too.

use std::fmt;
use std::str::FromStr;

/// A GPU's generation, such as 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

impl ComputeCapability {
    /// H100, H200.
    pub const HOPPER: Self = Self { major: 9, minor: 0 };
}

impl FromStr for ComputeCapability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('.');
        let numbers = numbers.and_then(|(major, minor)| {
            let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
            let both = is_number(major) && is_number(minor);
            both.then(|| Some((major.parse().ok()?, minor.parse().ok()?)))?
        });
        match numbers {
            Some((major, minor)) if major >= OLDEST => Ok(Self { major, minor }),
            Some(_) => Err(format!(
                "`{text}` is too old; the kernels need at least {OLDEST}.0"
            )),
            None => Err(format!(
                "`{text}` is not a compute capability; write `9.0` or `8.6`"
            )),
        }
    }
}

/// Dependent launch, bf16 and asynchronous copies need at least this major version.
const OLDEST: u32 = 8;

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What kernels are compiled for: machine code of an architecture (`80`, `90a`, `100f`), or PTX
/// (`compute_80`), which the driver compiles for newer architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    capability: ComputeCapability,
    kind: TargetKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    /// Runs on later minor versions too.
    Machine,
    /// `a`: with instructions that only this architecture has.
    ThisArchitecture,
    /// `f`: with instructions of this and later minor versions.
    Family,
    Ptx,
}

impl Target {
    /// Whether a GPU can run it.
    pub fn runs_on(self, gpu: ComputeCapability) -> bool {
        let Self { capability, kind } = self;
        match kind {
            TargetKind::Machine | TargetKind::Family => {
                gpu.major == capability.major && gpu >= capability
            }
            TargetKind::ThisArchitecture => gpu == capability,
            TargetKind::Ptx => gpu >= capability,
        }
    }

    /// The value of nvcc's `-gencode`.
    pub fn gencode(self) -> String {
        let number = self.number();
        match self.kind {
            TargetKind::Ptx => format!("arch=compute_{number},code=compute_{number}"),
            _ => format!("arch=compute_{number},code=sm_{number}"),
        }
    }

    /// As ptxas names it in its reports; `None` for PTX, which it does not compile.
    pub fn machine_name(self) -> Option<String> {
        (self.kind != TargetKind::Ptx).then(|| format!("sm_{}", self.number()))
    }

    /// The architecture in nvcc's notation, such as `90a`.
    fn number(self) -> String {
        let ComputeCapability { major, minor } = self.capability;
        let suffix = match self.kind {
            TargetKind::Machine | TargetKind::Ptx => "",
            TargetKind::ThisArchitecture => "a",
            TargetKind::Family => "f",
        };
        format!("{major}{minor}{suffix}")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            TargetKind::Ptx => "compute_",
            _ => "",
        };
        write!(f, "{prefix}{}", self.number())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!("`{text}` is not an architecture; write `80`, `90a`, `100f` or `compute_80`")
        };
        let (kind, number) = match text.strip_prefix("compute_") {
            Some(number) => (TargetKind::Ptx, number),
            None => match (text.strip_suffix('a'), text.strip_suffix('f')) {
                (Some(number), _) => (TargetKind::ThisArchitecture, number),
                (_, Some(number)) => (TargetKind::Family, number),
                (None, None) => (TargetKind::Machine, text),
            },
        };
        let is_number = number.bytes().all(|digit| digit.is_ascii_digit());
        if !is_number || !(2..=3).contains(&number.len()) {
            return Err(unknown());
        }
        let number: u32 = number.parse().map_err(|_| unknown())?;
        let capability = ComputeCapability {
            major: number / 10,
            minor: number % 10,
        };
        if capability.major < OLDEST {
            return Err(format!(
                "`{text}` is too old; the kernels need at least {OLDEST}0"
            ));
        }
        Ok(Self { capability, kind })
    }
}

/// Parses a list separated by commas.
pub fn parse_targets(text: &str) -> Result<Vec<Target>, String> {
    let mut targets: Vec<Target> = Vec::new();
    for name in text.split(',').map(str::trim) {
        let target = name.parse()?;
        if targets.contains(&target) {
            return Err(format!("`{name}` is listed twice"));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// The architectures that the first line of a kernel file limits it to; `None` for no limit.
pub fn file_targets(source: &str) -> Result<Option<Vec<Target>>, String> {
    let first = source.lines().next().unwrap_or_default();
    let list = first.strip_prefix("// architectures:");
    list.map(parse_targets).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_run_on_the_gpus_they_name() {
        for (target, runs_on, not_on) in [
            ("80", &["8.0", "8.6", "8.9"][..], &["9.0", "10.0"][..]),
            ("86", &["8.6", "8.9"], &["8.0", "9.0"]),
            ("90a", &["9.0"], &["8.9", "9.1", "10.0"]),
            ("100f", &["10.0", "10.3"], &["9.0", "11.0", "12.0"]),
            ("120f", &["12.0", "12.1"], &["10.0", "13.0"]),
            ("compute_80", &["8.0", "9.0", "12.1"], &["7.5"]),
        ] {
            let parsed: Target = target.parse().unwrap();
            assert_eq!(parsed.to_string(), target);
            let capability = |text: &&str| {
                let (major, minor) = text.split_once('.').unwrap();
                ComputeCapability {
                    major: major.parse().unwrap(),
                    minor: minor.parse().unwrap(),
                }
            };
            for gpu in runs_on {
                assert!(parsed.runs_on(capability(gpu)), "{target} on {gpu}");
                assert_eq!(capability(gpu).to_string(), *gpu);
            }
            for gpu in not_on {
                assert!(!parsed.runs_on(capability(gpu)), "{target} on {gpu}");
            }
        }
    }

    #[test]
    fn targets_have_nvcc_arguments() {
        for (target, gencode, machine) in [
            ("90a", "arch=compute_90a,code=sm_90a", Some("sm_90a")),
            ("100f", "arch=compute_100f,code=sm_100f", Some("sm_100f")),
            ("compute_80", "arch=compute_80,code=compute_80", None),
        ] {
            let parsed: Target = target.parse().unwrap();
            assert_eq!(parsed.gencode(), gencode);
            assert_eq!(parsed.machine_name().as_deref(), machine);
        }
    }

    #[test]
    fn lists_are_parsed_or_refused_by_name() {
        let names = |targets: Vec<Target>| {
            let names: Vec<_> = targets.iter().map(Target::to_string).collect();
            names.join(",")
        };
        for (list, expected) in [
            ("80,86, 90a ,compute_80", Ok("80,86,90a,compute_80")),
            ("", Err("``")),
            ("90a,", Err("``")),
            ("sm_90", Err("`sm_90`")),
            ("9000", Err("`9000`")),
            ("75", Err("`75` is too old")),
            ("80,80", Err("`80` is listed twice")),
        ] {
            match (parse_targets(list), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(names(found), expected),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, _) => panic!("{list}: {found:?}"),
            }
        }
    }

    #[test]
    fn compute_capability_is_parsed_or_refused() {
        for text in ["8.0", "9.0", "12.1"] {
            let parsed: ComputeCapability = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        for text in ["", "9", "9.", ".0", "9.0a", "+9.0", "7.5", "99999999999.0"] {
            let error = text.parse::<ComputeCapability>().unwrap_err();
            assert!(error.starts_with(&format!("`{text}` is ")), "{error}");
        }
    }

    #[test]
    fn first_line_limits_a_file() {
        let limited = file_targets("// architectures: 90a, 100f\nvoid f();").unwrap();
        assert_eq!(limited, Some(parse_targets("90a,100f").unwrap()));
        assert_eq!(file_targets("// A kernel.\n// architectures: 80"), Ok(None));
        assert_eq!(file_targets(""), Ok(None));
        assert!(file_targets("// architectures: 9").is_err());
    }
}
