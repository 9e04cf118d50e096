//! What a proxy does with connections that arrive at its workload.
