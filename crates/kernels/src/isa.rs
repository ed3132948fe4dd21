//! Selects the kernels' instruction set, once at program start.
//!
//! `SINEW_ISA=scalar|avx2|avx2-vnni|avx512|avx512-vbmi|neon|neon-dot|neon-i8mm` forces one, for
//! tests and comparisons; all give the same bits (see [`crate::simd`]).

use crate::error::Error;
use crate::simd::Simd;
use std::sync::OnceLock;

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vbmi,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

impl Isa {
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vbmi => "avx512-vbmi",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => "neon-dot",
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => "neon-i8mm",
        }
    }

    /// The instruction sets of this machine, the best last.
    pub fn available() -> Vec<Isa> {
        let mut available = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                available.push(Isa::Avx2);
            }
            if avx2 && is_x86_feature_detected!("avxvnni") {
                available.push(Isa::Avx2Vnni);
            }
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni")
            {
                available.push(Isa::Avx512);
                if is_x86_feature_detected!("avx512vbmi") {
                    available.push(Isa::Avx512Vbmi);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            available.push(Isa::Neon);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                available.push(Isa::NeonDot);
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    available.push(Isa::NeonI8mm);
                }
            }
        }
        available
    }

    /// The one in use: the best of this machine, or the one in `SINEW_ISA`.
    pub fn chosen() -> Isa {
        static CHOSEN: OnceLock<Isa> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let available = Isa::available();
            let best = *available.last().expect("scalar is always there");
            let asked = std::env::var("SINEW_ISA").unwrap_or_default();
            available.into_iter().find(|isa| isa.name() == asked).unwrap_or(best)
        })
    }
}

/// The instruction set in use, as text: `avx512-vbmi`, `avx512`, `avx2-vnni`, `avx2`, `neon-i8mm`,
/// `neon-dot`, `neon` or `scalar`.
pub fn isa() -> &'static str {
    Isa::chosen().name()
}

/// Checks that `SINEW_ISA`, if set, is an instruction set of this machine. A program calls this at
/// its start; the kernels fall back to the best one.
///
/// # Errors
/// [`Error::Isa`] contains the requested one and the available ones.
pub fn check_isa() -> Result<(), Error> {
    let Ok(asked) = std::env::var("SINEW_ISA") else { return Ok(()) };
    let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    if names.contains(&asked.as_str()) {
        return Ok(());
    }
    Err(Error::Isa { asked, available: names.join(", ") })
}

/// A piece of work written once for all instruction sets: its arguments and its code.
///
/// Each compiled instruction set adds to the build time, so a kernel declares the features it
/// benefits from (docs/decisions/0015-build-time.md); any set gives the same bits.
pub(crate) trait Kernel {
    type Out;
    /// Whether it uses integer dot products, so that sets that only add those are worthwhile.
    const INT_DOTS: bool = false;
    /// Whether it uses products of small integer matrices ([`Simd::gemm_dots`]).
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    const MATRICES: bool = false;
    /// Whether it looks up bytes in a [`crate::format::Codebook`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const LOOKUPS: bool = false;
    /// Whether it benefits from vectors of 64 bytes.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const WIDE: bool = true;
    /// Whether it must support [`Isa::Scalar`]: if another kernel can do the same work, that one
    /// runs there.
    const SCALAR: bool = true;
    /// Must be `#[inline(always)]`, so that it is compiled with the instructions of its caller.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// Runs a kernel on the given instruction set, which must be among [`Isa::available`], or on a
/// smaller one if the kernel does not benefit. A kernel may run another one that several share,
/// which stays a separate function.
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Out {
    match isa {
        Isa::Scalar if K::SCALAR => run_scalar(kernel),
        Isa::Scalar => unreachable!("another kernel does this without vectors"),
        // SAFETY (all arms): an `Isa` other than scalar comes from `available`, which checked the
        // machine, and every set contains the smaller one.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        Isa::Avx512Vbmi if K::LOOKUPS => unsafe { run_avx512_vbmi(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        Isa::Avx512 | Isa::Avx512Vbmi if K::WIDE => unsafe { run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        Isa::Avx2Vnni if K::INT_DOTS => unsafe { run_avx2_vnni(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        Isa::Avx2 | Isa::Avx2Vnni | Isa::Avx512 | Isa::Avx512Vbmi => unsafe { run_avx2(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: see above.
        Isa::NeonI8mm if K::MATRICES => unsafe { run_neon_i8mm(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: see above.
        Isa::NeonDot | Isa::NeonI8mm if K::INT_DOTS => unsafe { run_neon_dot(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: see above.
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => unsafe { run_neon(kernel) },
    }
}

#[inline(never)]
fn run_scalar<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(crate::simd::scalar::Scalar)
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::avx2::Avx2::<false>::new_unchecked() })
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn run_avx2_vnni<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::avx2::Avx2::<true>::new_unchecked() })
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::avx512::Avx512::<false>::new_unchecked() })
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn run_avx512_vbmi<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::avx512::Avx512::<true>::new_unchecked() })
}

#[cfg(target_arch = "aarch64")]
#[inline(never)]
#[target_feature(enable = "neon")]
unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::neon::Neon::<false, false>::new_unchecked() })
}

#[cfg(target_arch = "aarch64")]
#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
unsafe fn run_neon_dot<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::neon::Neon::<true, false>::new_unchecked() })
}

#[cfg(target_arch = "aarch64")]
#[inline(never)]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn run_neon_i8mm<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: the caller promises the instructions.
    kernel.run(unsafe { crate::simd::neon::Neon::<true, true>::new_unchecked() })
}
