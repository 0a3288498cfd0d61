# Every pool but `cpu` keeps others off: spot pools by the taint below, the sandbox's and the TPUs' by taints of GKE's
# own (sandbox.gke.io/runtime, google.com/tpu).
locals {
  cpu_pools = {
    cpu     = { settings = var.cpu_pool, min_nodes = var.cpu_pool.min_nodes, spot = false, sandbox = false }
    spot    = { settings = var.spot_pool, min_nodes = 0, spot = true, sandbox = false }
    sandbox = { settings = var.sandbox_pool, min_nodes = 0, spot = false, sandbox = true }
  }

  spot_taint = { key = "cloud.google.com/gke-spot", value = "true", effect = "NO_SCHEDULE" }
}

resource "google_container_node_pool" "cpu" {
  for_each = local.cpu_pools

  name               = each.key
  cluster            = google_container_cluster.headrace.id
  initial_node_count = each.value.min_nodes

  autoscaling {
    total_min_node_count = each.value.min_nodes
    total_max_node_count = each.value.settings.max_nodes
    location_policy      = each.value.spot ? "ANY" : "BALANCED"
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  node_config {
    machine_type    = each.value.settings.machine_type
    image_type      = "COS_CONTAINERD"
    disk_type       = "pd-balanced"
    disk_size_gb    = each.value.settings.disk_gb
    spot            = each.value.spot
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    dynamic "sandbox_config" {
      for_each = each.value.sandbox ? ["GVISOR"] : []
      content {
        type = sandbox_config.value
      }
    }

    dynamic "taint" {
      for_each = each.value.spot ? [local.spot_taint] : []
      content {
        key    = taint.value.key
        value  = taint.value.value
        effect = taint.value.effect
      }
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}

# One node a slice on a single host, one pool a slice on several: GKE makes and removes such a pool's nodes all at once.
resource "google_container_node_pool" "tpu" {
  for_each = local.tpu_node_pools

  name               = each.key
  cluster            = google_container_cluster.headrace.id
  node_locations     = [each.value.zone]
  initial_node_count = 0

  autoscaling {
    total_min_node_count = 0
    total_max_node_count = each.value.max_nodes
    location_policy      = "ANY"
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  # No chips are kept in reserve for an upgrade.
  upgrade_settings {
    max_surge       = 0
    max_unavailable = 1
  }

  dynamic "placement_policy" {
    for_each = each.value.hosts > 1 ? [each.value.topology] : []
    content {
      type         = "COMPACT"
      tpu_topology = placement_policy.value
    }
  }

  node_config {
    machine_type    = each.value.machine_type
    disk_size_gb    = each.value.disk_gb
    spot            = each.value.capacity == "spot"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    dynamic "reservation_affinity" {
      for_each = each.value.capacity == "reservation" ? [each.value.reservation] : []
      content {
        consume_reservation_type = "SPECIFIC_RESERVATION"
        key                      = "compute.googleapis.com/reservation-name"
        values                   = [reservation_affinity.value]
      }
    }

    dynamic "taint" {
      for_each = each.value.capacity == "spot" ? [local.spot_taint] : []
      content {
        key    = taint.value.key
        value  = taint.value.value
        effect = taint.value.effect
      }
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}
