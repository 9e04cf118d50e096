//! Counters, histograms and the access log of the data plane.
