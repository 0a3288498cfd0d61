# Pipelines name images by digest, and a tag that was pushed never moves.
resource "google_artifact_registry_repository" "images" {
  repository_id = var.name
  description   = "Images of pipeline steps and of the sandbox"
  location      = var.region
  format        = "DOCKER"
  labels        = var.labels

  docker_config {
    immutable_tags = true
  }

  cleanup_policies {
    id     = "untagged"
    action = "DELETE"
    condition {
      tag_state  = "UNTAGGED"
      older_than = "30d"
    }
  }

  depends_on = [google_project_service.used]
}

resource "google_artifact_registry_repository_iam_member" "nodes_pull" {
  repository = google_artifact_registry_repository.images.name
  location   = google_artifact_registry_repository.images.location
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.nodes.member
}
