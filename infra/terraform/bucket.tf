# Everything that a run writes. Pointers (`latest`, `promoted`) are overwritten and old checkpoints deleted while runs
# go on, so what was replaced stays for some days; what is live is never deleted by a rule: a cached step may point at
# it.
resource "google_storage_bucket" "runs" {
  name     = "${var.project_id}-${var.name}"
  location = var.region
  labels   = var.labels

  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.destroy_data

  versioning {
    enabled = true
  }

  # Versions do this already; twice would be paid for twice.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      with_state                 = "ARCHIVED"
      days_since_noncurrent_time = var.replaced_days
    }
  }

  # Uploads that a killed step left open.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  depends_on = [google_project_service.used]
}

resource "google_storage_bucket_iam_member" "runs" {
  for_each = local.workloads

  bucket = google_storage_bucket.runs.name
  role   = each.value.bucket_role
  member = google_service_account.workload[each.key].member
}
