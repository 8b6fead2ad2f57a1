//! The processor features that the kernels use, for diagnosis.

#[cfg(target_arch = "x86_64")]
macro_rules! detected {
    ($($name:tt),+) => {
        vec![$(($name, is_x86_feature_detected!($name))),+]
    };
}

/// Each extension that some kernel uses, in the vendor's spelling, and whether it is available.
/// `supported` chooses by these.
pub fn cpu_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut features = detected![
            "avx2",
            "fma",
            "f16c",
            "avxvnni",
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512dq",
            "avx512vnni",
            "avx512bf16"
        ];
        #[cfg(target_os = "linux")]
        features.push(("amx-int8", super::amx::available()));
        features
    }
    #[cfg(target_arch = "aarch64")]
    {
        let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        vec![("neon", true), ("dotprod", dotprod)]
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Vec::new()
}
