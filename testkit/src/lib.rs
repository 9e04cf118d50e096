//! Network lab, load generator and scripted peers for tests.
