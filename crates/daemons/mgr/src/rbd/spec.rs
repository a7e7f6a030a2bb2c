//! How pools and images are named in commands.

use command::Refusal;

/// Which pools a command is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolKey {
    /// All of them.
    All,
    /// One namespace of a pool; the one without a name, if none was given.
    Pool {
        /// The pool.
        pool: String,
        /// The namespace.
        namespace: String,
    },
}

/// `POOL[/NAMESPACE]`, or nothing for all pools.
pub fn pool_key(text: &str) -> Result<PoolKey, Refusal> {
    let key = |pool: &str, namespace: &str| PoolKey::Pool {
        pool: pool.to_owned(),
        namespace: namespace.to_owned(),
    };
    match text.split('/').collect::<Vec<_>>()[..] {
        [""] => Ok(PoolKey::All),
        [pool] => Ok(key(pool, "")),
        [pool, namespace] if !pool.is_empty() && !namespace.is_empty() => Ok(key(pool, namespace)),
        _ => Err(Refusal::invalid(format!("Invalid pool spec: {text}"))),
    }
}

/// An image by name or id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// Its pool.
    pub pool: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name or id.
    pub image: String,
}

impl ImageSpec {
    /// `[POOL/[NAMESPACE/]]IMAGE`.
    pub fn parse(text: &str, default_pool: &str) -> Result<Self, Refusal> {
        let parts: Vec<&str> = text.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [image] => (default_pool, "", image),
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => ("", "", ""),
        };
        if pool.is_empty() || image.is_empty() || image.contains('@') {
            return Err(Refusal::invalid(format!("Invalid image spec: {text}")));
        }
        Ok(ImageSpec {
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
        })
    }
}

impl std::fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{}/{}", self.pool, self.image),
            namespace => write!(f, "{}/{namespace}/{}", self.pool, self.image),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_images() {
        let pool = |p: &str, n: &str| Ok(PoolKey::Pool { pool: p.into(), namespace: n.into() });
        assert_eq!(pool_key(""), Ok(PoolKey::All));
        assert_eq!(pool_key("p"), pool("p", ""));
        assert_eq!(pool_key("p/n"), pool("p", "n"));
        for bad in ["/", "p/", "/n", "a/b/c"] {
            assert!(pool_key(bad).is_err(), "{bad}");
        }
        let shown = |text: &str| ImageSpec::parse(text, "rbd").map(|s| s.to_string()).ok();
        assert_eq!(shown("i").as_deref(), Some("rbd/i"));
        assert_eq!(shown("p/i").as_deref(), Some("p/i"));
        assert_eq!(shown("p/n/i").as_deref(), Some("p/n/i"));
        for bad in ["", "p/", "/i", "p//i", "i@s", "a/b/c/d"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
