//! plan(model, nodes) -> Plan: who holds which share, and why. Pure: no I/O, no clock.
