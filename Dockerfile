# The programs on a bare Debian, whose packages ./weft installs:
#   docker build -t weft . && docker run --rm -it weft ./weft run autoencoder
FROM debian:bookworm
RUN apt-get update && apt-get install -y --no-install-recommends git ca-certificates
COPY . /weft
WORKDIR /weft
RUN ./weft run mlp --limit-steps 1
