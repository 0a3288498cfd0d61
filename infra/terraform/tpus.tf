# What TPU slices exist (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus): the machine of a host,
# chips a host, hosts a slice, and the processors and memory of a host. `components/launcher/tpu.py` holds the same table
# for steps.
locals {
  tpu_types = {
    v5e = {
      accelerator = "tpu-v5-lite-podslice"
      topologies = {
        "1x1"   = { machine_type = "ct5lp-hightpu-1t", chips_per_host = 1, hosts = 1, cpus = 24, memory_gb = 48 }
        "2x2"   = { machine_type = "ct5lp-hightpu-4t", chips_per_host = 4, hosts = 1, cpus = 112, memory_gb = 192 }
        "2x4"   = { machine_type = "ct5lp-hightpu-8t", chips_per_host = 8, hosts = 1, cpus = 224, memory_gb = 384 }
        "4x4"   = { machine_type = "ct5lp-hightpu-4t", chips_per_host = 4, hosts = 4, cpus = 112, memory_gb = 192 }
        "4x8"   = { machine_type = "ct5lp-hightpu-4t", chips_per_host = 4, hosts = 8, cpus = 112, memory_gb = 192 }
        "8x8"   = { machine_type = "ct5lp-hightpu-4t", chips_per_host = 4, hosts = 16, cpus = 112, memory_gb = 192 }
        "8x16"  = { machine_type = "ct5lp-hightpu-4t", chips_per_host = 4, hosts = 32, cpus = 112, memory_gb = 192 }
        "16x16" = { machine_type = "ct5lp-hightpu-4t", chips_per_host = 4, hosts = 64, cpus = 112, memory_gb = 192 }
      }
    }
    v6e = {
      accelerator = "tpu-v6e-slice"
      topologies = {
        "1x1"   = { machine_type = "ct6e-standard-1t", chips_per_host = 1, hosts = 1, cpus = 44, memory_gb = 176 }
        "2x2"   = { machine_type = "ct6e-standard-4t", chips_per_host = 4, hosts = 1, cpus = 180, memory_gb = 720 }
        "2x4"   = { machine_type = "ct6e-standard-8t", chips_per_host = 8, hosts = 1, cpus = 180, memory_gb = 1440 }
        "4x4"   = { machine_type = "ct6e-standard-4t", chips_per_host = 4, hosts = 4, cpus = 180, memory_gb = 720 }
        "4x8"   = { machine_type = "ct6e-standard-4t", chips_per_host = 4, hosts = 8, cpus = 180, memory_gb = 720 }
        "8x8"   = { machine_type = "ct6e-standard-4t", chips_per_host = 4, hosts = 16, cpus = 180, memory_gb = 720 }
        "8x16"  = { machine_type = "ct6e-standard-4t", chips_per_host = 4, hosts = 32, cpus = 180, memory_gb = 720 }
        "16x16" = { machine_type = "ct6e-standard-4t", chips_per_host = 4, hosts = 64, cpus = 180, memory_gb = 720 }
      }
    }
  }

  # "v5e 2x4" -> what such a slice is made of.
  tpu_shapes = merge([
    for type, tpu in local.tpu_types : {
      for topology, shape in tpu.topologies : "${type} ${topology}" => merge(shape, { accelerator = tpu.accelerator })
    }
  ]...)

  # A variable's pool with its shape, then one node pool a slice where a slice has several hosts.
  tpu_slices = {
    for name, pool in var.tpu_pools :
    name => merge(pool, local.tpu_shapes["${pool.type} ${pool.topology}"], { zone = coalesce(pool.zone, var.zone) })
  }

  tpu_node_pools = merge(
    { for name, slice in local.tpu_slices : name => merge(slice, { max_nodes = slice.slices }) if slice.hosts == 1 },
    merge([
      for name, slice in local.tpu_slices : {
        for index in range(slice.slices) : "${name}-${index}" => merge(slice, { max_nodes = slice.hosts })
      } if slice.hosts > 1
    ]...)
  )
}
