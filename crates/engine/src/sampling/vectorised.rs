//! One loop, several widths.

/// Compiles a loop for the registers of the CPU it runs on. Rust neither reorders nor fuses
/// floating-point operations, so every width gives the same bits.
macro_rules! vectorised {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        pub(super) fn $name($($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            fn portable($($arg: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
                fn avx512($($arg: $type),*) $(-> $result)? {
                    portable($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) $(-> $result)? {
                    portable($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                {
                    // SAFETY: this CPU has what the function was compiled for.
                    return unsafe { avx512($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: this CPU has what the function was compiled for.
                    return unsafe { avx2($($arg),*) };
                }
            }
            portable($($arg),*)
        }
    };
}

pub(super) use vectorised;
