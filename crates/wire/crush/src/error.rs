/// Why a change to a map was refused. The caller named something that is not there, or asked for a
/// shape that a CRUSH map cannot have; the map may have been changed in part, so work on a copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrushError {
    /// An item, bucket, rule, type or class that does not exist (`ENOENT`).
    #[error("{0} does not exist")]
    NotFound(String),
    /// A name or number that is taken (`EEXIST`).
    #[error("{0} already exists")]
    Exists(String),
    /// A name, type or argument that cannot be (`EINVAL`).
    #[error("{0}")]
    Invalid(String),
    /// The bucket still holds items (`ENOTEMPTY`).
    #[error("bucket {0} is not empty")]
    NotEmpty(i32),
    /// A rule or a device-class tree still refers to the bucket (`EBUSY`).
    #[error("{0} is in use")]
    Busy(String),
    /// The change would make a bucket contain itself (`ELOOP`).
    #[error("bucket {0} would contain itself")]
    Loop(i32),
    /// A weight that leaves the range of its 16.16 fixed-point field (`EOVERFLOW`).
    #[error("a weight is out of range")]
    Overflow,
    /// No rule or class number is left (`ENOSPC`).
    #[error("no {0} is left")]
    NoSpace(&'static str),
    /// The item is not a bucket (`ENOTDIR`).
    #[error("{0} is not a bucket")]
    NotBucket(String),
}

impl CrushError {
    /// The Linux error number that Ceph's commands answer in this case.
    pub fn errno(&self) -> i32 {
        match self {
            CrushError::NotFound(_) => 2,
            CrushError::Busy(_) => 16,
            CrushError::Exists(_) => 17,
            CrushError::NotBucket(_) => 20,
            CrushError::Invalid(_) => 22,
            CrushError::NoSpace(_) => 28,
            CrushError::NotEmpty(_) => 39,
            CrushError::Loop(_) => 40,
            CrushError::Overflow => 75,
        }
    }
}
