//! One-time passwords that users need to delete versions.

use crate::open_enum;
use bytes::Bytes;
use denc_derive::Denc;
use std::collections::BTreeSet;
use types::Utime;

open_enum! {
    /// How a seed is written (Ceph: `rados::cls::otp::SeedType`).
    SeedType(u8) {
        /// Not known; read as hexadecimal.
        UNKNOWN = 0,
        /// Hexadecimal.
        HEX = 1,
        /// Base 32.
        BASE32 = 2,
    }
}

open_enum! {
    /// What a check found (Ceph: `rados::cls::otp::OTPCheckResult`).
    CheckResult(u8) {
        /// There was no such check.
        UNKNOWN = 0,
        /// The password was right.
        SUCCESS = 1,
        /// It was wrong.
        FAIL = 2,
    }
}

/// Passwords that follow the time (Ceph: `OTP_TOTP`).
pub const TYPE_TOTP: u8 = 2;

/// A generator of passwords (Ceph: `rados::cls::otp::otp_info_t`, `cls/otp/cls_otp_types.h`,
/// version 1).
#[derive(Clone, Debug, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpInfo {
    /// [`TYPE_TOTP`]; others are treated as that.
    pub kind: u8,
    /// Its id.
    pub id: Bytes,
    /// The secret as text.
    pub seed: Bytes,
    /// How that is written.
    pub seed_type: SeedType,
    /// The secret; the class makes it from the text.
    pub seed_bin: Bytes,
    /// Seconds that its clock is behind.
    pub time_ofs: i32,
    /// Seconds for which a password is good.
    pub step_size: u32,
    /// So many passwords before and after the current one are good too.
    pub window: u32,
}

impl Default for OtpInfo {
    fn default() -> Self {
        OtpInfo {
            kind: TYPE_TOTP,
            id: Bytes::new(),
            seed: Bytes::new(),
            seed_type: SeedType::UNKNOWN,
            seed_bin: Bytes::new(),
            time_ofs: 0,
            step_size: 30,
            window: 2,
        }
    }
}

/// A check (Ceph: `rados::cls::otp::otp_check_t`, `cls/otp/cls_otp_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpCheck {
    /// The client's name for it.
    pub token: Bytes,
    /// When it was.
    pub timestamp: Utime,
    /// What it found.
    pub result: CheckResult,
}

/// Which generators there are (Ceph: `otp_header`, `cls/otp/cls_otp.cc`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpHeader {
    /// Their ids.
    pub ids: BTreeSet<Bytes>,
}

/// A generator and what it was used for (Ceph: `otp_instance`, `cls/otp/cls_otp.cc`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpInstance {
    /// The generator.
    pub otp: OtpInfo,
    /// The last checks.
    pub last_checks: Vec<OtpCheck>,
    /// The step of the last password that was right: none is good twice.
    pub last_success: u64,
}

/// Input of `otp_set` (Ceph: `cls_otp_set_otp_op`) and output of `otp_get` (Ceph:
/// `cls_otp_get_otp_reply`, both `cls/otp/cls_otp_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpEntries {
    /// Generators.
    pub entries: Vec<OtpInfo>,
}

/// Input of `otp_check` and `otp_get_result` (Ceph: `cls_otp_check_otp_op`,
/// `cls/otp/cls_otp_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpCheckOp {
    /// The generator.
    pub id: Bytes,
    /// The password.
    pub val: Bytes,
    /// The client's name for the check.
    pub token: Bytes,
}

/// Output of `otp_get_result` (Ceph: `cls_otp_get_result_reply`, `cls/otp/cls_otp_ops.h`,
/// version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpResult {
    /// The check.
    pub result: OtpCheck,
}

/// Input of `otp_remove` (Ceph: `cls_otp_remove_otp_op`, `cls/otp/cls_otp_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpRemoveOp {
    /// Generators.
    pub ids: Vec<Bytes>,
}

/// Input of `otp_get` (Ceph: `cls_otp_get_otp_op`, `cls/otp/cls_otp_ops.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpGetOp {
    /// All of them.
    pub get_all: bool,
    /// Otherwise these.
    pub ids: Vec<Bytes>,
}

/// Output of `get_current_time` (Ceph: `cls_otp_get_current_time_reply`, `cls/otp/cls_otp_ops.h`,
/// version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct OtpTime {
    /// The time at the OSD.
    pub time: Utime,
}
