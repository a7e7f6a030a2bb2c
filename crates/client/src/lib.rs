//! Monitor client and native RADOS client.
