# A server for CPUs. Build: docker build -t parspec .
# Run: docker run -p 127.0.0.1:8000:8000 -v parspec:/models -v ./key.txt:/key.txt:ro parspec --api-key-file /key.txt
FROM python:3.11-slim

# The compiler builds parspec's kernels on first use, for the processor that is found then.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# Options for pip, such as the index of CPU builds of torch: the default build brings several GB of CUDA along.
ARG PIP_OPTIONS=""
WORKDIR /parspec
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ${PIP_OPTIONS} --constraint constraints.txt torch \
    && pip install --no-cache-dir --constraint constraints.txt .

# Models and kernels are kept in the volume; nothing runs as root.
RUN useradd --create-home parspec && mkdir /models && chown parspec /models
USER parspec
ENV XDG_CACHE_HOME=/models
VOLUME /models
EXPOSE 8000

# Loading may include fetching weights.
HEALTHCHECK --interval=30s --start-period=10m \
    CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"
STOPSIGNAL SIGTERM
ENTRYPOINT ["parspec", "serve", "--host", "0.0.0.0"]
