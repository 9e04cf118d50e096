//! What a proxy does with connections that its workload opens.
