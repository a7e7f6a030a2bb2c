//! The shared vocabulary: identifiers, objects, placement groups and the cluster maps.
