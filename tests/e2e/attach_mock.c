// Stand-ins for every probed function, which do nothing but return a status and hand out addresses: what the
// probes see of a call does not depend on a device. Built in several ways (see CMakeLists.txt): the first
// bytes of a function decide how it can be probed.
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default"), noinline))

/** What every function returns. */
__attribute__((visibility("default"))) int attach_mock_status = 0;
/** The next address or handle that is handed out. */
__attribute__((visibility("default"))) uint64_t attach_mock_next = 0x7f0000000000u;

/* Called so that the functions have a frame and begin with a push. */
__attribute__((noinline, noipa)) static int answer(void) {
  return attach_mock_status;
}

static int hand_out(uint64_t *out) {
  if (attach_mock_status == 0) *out = attach_mock_next += 1u << 20;
  return attach_mock_status;
}

struct id {
  char bytes[128];
};

#define OUT(name, ...)                                                                                       \
  EXPORT int name(uint64_t *out, ##__VA_ARGS__);                                                             \
  EXPORT int name(uint64_t *out, ##__VA_ARGS__) {                                                            \
    return hand_out(out);                                                                                    \
  }
#define PLAIN(name)                                                                                          \
  EXPORT int name(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);                               \
  EXPORT int name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {                  \
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;                                                    \
    return answer();                                                                                         \
  }

/* A runtime call is made of a driver call, as in the real libraries: both are probed, one is counted. */
OUT(cuMemAlloc_v2, size_t bytes)
EXPORT int cudaMalloc(uint64_t *out, size_t bytes);
EXPORT int cudaMalloc(uint64_t *out, size_t bytes) {
  return cuMemAlloc_v2(out, bytes);
}
PLAIN(cuMemFree_v2)
EXPORT int cudaFree(uint64_t address);
EXPORT int cudaFree(uint64_t address) {
  return cuMemFree_v2(address, 0, 0, 0, 0, 0);
}

OUT(cudaMallocManaged, size_t bytes)
OUT(cudaMallocAsync, size_t bytes, void *stream)
OUT(cudaMallocAsync_ptsz, size_t bytes, void *stream)
OUT(cudaMallocFromPoolAsync, size_t bytes, void *pool, void *stream)
OUT(cudaMallocFromPoolAsync_ptsz, size_t bytes, void *pool, void *stream)
OUT(cuMemAllocManaged, size_t bytes)
OUT(cuMemAllocAsync, size_t bytes, void *stream)
OUT(cuMemAllocAsync_ptsz, size_t bytes, void *stream)
OUT(cuMemAllocFromPoolAsync, size_t bytes, void *pool, void *stream)
OUT(cuMemAllocFromPoolAsync_ptsz, size_t bytes, void *pool, void *stream)
OUT(cuMemCreate, size_t bytes)
OUT(cuMemAddressReserve, size_t bytes)

#define PITCH(name)                                                                                          \
  EXPORT int name(uint64_t *out, size_t *pitch, size_t width, size_t height);                                \
  EXPORT int name(uint64_t *out, size_t *pitch, size_t width, size_t height) {                               \
    (void)height;                                                                                            \
    *pitch = (width + 511) / 512 * 512;                                                                      \
    return hand_out(out);                                                                                    \
  }
PITCH(cudaMallocPitch)
PITCH(cuMemAllocPitch_v2)

PLAIN(cudaFreeAsync)
PLAIN(cudaFreeAsync_ptsz)
PLAIN(cuMemFreeAsync)
PLAIN(cuMemFreeAsync_ptsz)
PLAIN(cuMemRelease)
PLAIN(cuMemMap)
PLAIN(cuMemUnmap)

/* NCCL: the public names are weak aliases of those with a p. */
#define ALIAS(name)                                                                                          \
  EXPORT int name(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t)                                \
      __attribute__((weak, alias("p" #name)));
PLAIN(pncclSend)
ALIAS(ncclSend)
PLAIN(pncclRecv)
ALIAS(ncclRecv)
PLAIN(ncclGroupStart)
PLAIN(ncclGroupEnd)
PLAIN(ncclGroupSimulateEnd)
PLAIN(ncclCommDestroy)
PLAIN(ncclCommAbort)
PLAIN(ncclCommFinalize)

OUT(ncclCommInitRank, int ranks, struct id id, int rank)
OUT(ncclCommInitRankConfig, int ranks, struct id id, int rank, void *config)
OUT(ncclCommInitRankScalable, int ranks, int rank, int ids, struct id *id, void *config)
EXPORT int ncclCommInitAll(uint64_t *out, int count, const int *devices);
EXPORT int ncclCommInitAll(uint64_t *out, int count, const int *devices) {
  (void)devices;
  int status = 0;
  for (int i = 0; i < count; i++)
    status |= hand_out(&out[i]);
  return status;
}
EXPORT int ncclCommSplit(uint64_t parent, int colour, int key, uint64_t *out, void *config);
EXPORT int ncclCommSplit(uint64_t parent, int colour, int key, uint64_t *out, void *config) {
  (void)parent, (void)colour, (void)key, (void)config;
  return hand_out(out);
}

/** The id of all communicators made by ncclCommInitRank below. */
EXPORT int attach_mock_init(uint64_t *out, int ranks, int rank, int how);
EXPORT int attach_mock_init(uint64_t *out, int ranks, int rank, int how) {
  struct id id;
  for (int i = 0; i < 128; i++)
    id.bytes[i] = (char)(7 * i + 1);
  switch (how) {
  case 0:
    return ncclCommInitRank(out, ranks, id, rank);
  case 1:
    return ncclCommInitRankConfig(out, ranks, id, rank, NULL);
  default:
    return ncclCommInitRankScalable(out, ranks, rank, 1, &id, NULL);
  }
}
