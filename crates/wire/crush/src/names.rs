use std::collections::BTreeMap;

/// Whether a name may be given by an operator. Names of device-class shadow buckets contain `~` on
/// purpose, so that they can never be one of these.
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Numbers with names, looked up either way. Two numbers may carry one name in a map from outside;
/// the largest number then answers for the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    by_id: BTreeMap<i32, String>,
    by_name: BTreeMap<String, i32>,
}

impl Names {
    /// The name of a number.
    pub fn name(&self, id: i32) -> Option<&str> {
        self.by_id.get(&id).map(String::as_str)
    }

    /// The number of a name.
    pub fn id(&self, name: &str) -> Option<i32> {
        self.by_name.get(name).copied()
    }

    /// Whether the number has a name.
    pub fn contains(&self, id: i32) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Gives the number a name, which replaces its previous one.
    pub fn set(&mut self, id: i32, name: impl Into<String>) {
        let name = name.into();
        self.remove(id);
        self.by_name.insert(name.clone(), id);
        self.by_id.insert(id, name);
    }

    /// Forgets the number and returns its name.
    pub fn remove(&mut self, id: i32) -> Option<String> {
        let name = self.by_id.remove(&id)?;
        if self.by_name.get(&name) == Some(&id) {
            self.by_name.remove(&name);
        }
        Some(name)
    }

    /// All pairs, by number.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (i32, &str)> {
        self.by_id.iter().map(|(k, v)| (*k, v.as_str()))
    }

    /// How many numbers have a name.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether no number has a name.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The largest number that has a name.
    pub fn last_id(&self) -> Option<i32> {
        self.by_id.keys().next_back().copied()
    }

    /// Whether two numbers carry the same name.
    pub fn has_duplicates(&self) -> bool {
        self.by_id.len() != self.by_name.len()
    }
}

impl FromIterator<(i32, String)> for Names {
    fn from_iter<I: IntoIterator<Item = (i32, String)>>(iter: I) -> Self {
        let mut names = Names::default();
        for (id, name) in iter {
            names.set(id, name);
        }
        names
    }
}
