//! The OSD daemon.
