# The commands of README in a container: `docker build -t reckon . && docker run -it reckon`.
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /reckon
# With .git, which DVC and the provenance read.
COPY . .
RUN make setup
CMD ["make", "all"]
