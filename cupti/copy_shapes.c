/* Copies that are described by a struct: which ranges of memory they use. Owns nothing; calls nothing. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string.h>

#include "cupti/cuda_side.h"

/* Bytes from the first to behind the last byte of a pitched box. */
static uint64_t span(uint64_t pitch, uint64_t width, uint64_t rows) {
  return rows == 0 || width == 0 ? 0 : (rows - 1) * (pitch ? pitch : width) + width;
}

/* One side of a copy between boxes. */
struct box {
  uint64_t memory; /* begin of the box that x, y and z count in; 0: an array */
  uint64_t pitch, rows, x, y, z;
};

static uint64_t box_begin(const struct box *box) {
  return box->memory ? box->memory + (box->z * box->rows + box->y) * box->pitch + box->x : 0;
}

static uint64_t box_bytes(const struct box *box, uint64_t width, uint64_t height, uint64_t depth) {
  if (!box->memory || !depth || !height) return 0;
  return span(box->pitch, width, (depth - 1) * (box->rows ? box->rows : height) + height);
}

static void fill(struct rp_cuda_op *out, const struct box *to, const struct box *from, uint64_t width,
                 uint64_t height, uint64_t depth) {
  *out = (struct rp_cuda_op){.kind = RP_EVENT_COPY_READ,
                             .address = box_begin(to),
                             .bytes = box_bytes(to, width, height, depth),
                             .source = box_begin(from),
                             .source_bytes = box_bytes(from, width, height, depth)};
}

/* ---- the driver's ---- */

/* Where a side's memory is, of the device or of the host; 0 for arrays. */
static uint64_t memory_of(CUmemorytype type, CUdeviceptr device, const void *host) {
  if (type == CU_MEMORYTYPE_HOST || (type == CU_MEMORYTYPE_UNIFIED && !device)) return (uintptr_t)host;
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
}

#define SIDE(copy, side, rows_, z_)                                                                          \
  {                                                                                                          \
    memory_of((copy)->side##MemoryType, (copy)->side##Device, (copy)->side##Host), (copy)->side##Pitch,      \
        (rows_), (copy)->side##XInBytes, (copy)->side##Y, (z_)                                               \
  }

bool rp_shape_copy_2d(const void *copy, struct rp_cuda_op *out) {
  const CUDA_MEMCPY2D *c = copy;
  if (!c) return false;
  const struct box to = SIDE(c, dst, 0, 0), from = SIDE(c, src, 0, 0);
  fill(out, &to, &from, c->WidthInBytes, c->Height, 1);
  return true;
}

#define SHAPE_3D(name, type)                                                                                 \
  bool name(const void *copy, struct rp_cuda_op *out) {                                                      \
    const type *c = copy;                                                                                    \
    if (!c) return false;                                                                                    \
    const struct box to = SIDE(c, dst, c->dstHeight, c->dstZ), from = SIDE(c, src, c->srcHeight, c->srcZ);   \
    fill(out, &to, &from, c->WidthInBytes, c->Height, c->Depth);                                             \
    return true;                                                                                             \
  }
SHAPE_3D(rp_shape_copy_3d, CUDA_MEMCPY3D)
SHAPE_3D(rp_shape_copy_3d_peer, CUDA_MEMCPY3D_PEER)

/* A side of a batched copy between boxes: an element is a byte where both sides are pointers. */
static uint64_t operand_bytes(const CUmemcpy3DOperand *side, const CUextent3D *extent) {
  uint64_t rows = side->op.ptr.layerHeight ? side->op.ptr.layerHeight : extent->height;
  if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER || !extent->depth || !extent->height) return 0;
  return span(side->op.ptr.rowLength, extent->width, (extent->depth - 1) * rows + extent->height);
}

static uint64_t operand_begin(const CUmemcpy3DOperand *side) {
  return side->type == CU_MEMCPY_OPERAND_TYPE_POINTER ? side->op.ptr.ptr : 0;
}

bool rp_shape_copy_3d_batch(const void *list, size_t index, struct rp_cuda_op *out) {
  const CUDA_MEMCPY3D_BATCH_OP *op = list;
  if (!op) return false;
  op += index;
  *out = (struct rp_cuda_op){.kind = RP_EVENT_COPY_READ,
                             .address = operand_begin(&op->dst),
                             .bytes = operand_bytes(&op->dst, &op->extent),
                             .source = operand_begin(&op->src),
                             .source_bytes = operand_bytes(&op->src, &op->extent)};
  return true;
}

bool rp_shape_memory_op(const void *list, size_t index, struct rp_cuda_op *out) {
  const CUstreamBatchMemOpParams *op = list;
  if (!op) return false;
  op += index;
  *out = (struct rp_cuda_op){.kind = RP_EVENT_COPY_READ};
  switch ((int)op->operation) {
  case CU_STREAM_MEM_OP_WRITE_VALUE_32:
  case CU_STREAM_MEM_OP_WRITE_VALUE_64:
    out->kind = RP_EVENT_MEMSET;
    out->address = op->writeValue.address;
    out->bytes = op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4;
    return true;
  case CU_STREAM_MEM_OP_WAIT_VALUE_32:
  case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    out->source = op->waitValue.address;
    out->source_bytes = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ? 8 : 4;
    return true;
  default:
    return false;
  }
}

/* ---- the runtime's ---- */

_Static_assert(sizeof(struct cudaMemcpy3DBatchOp) == sizeof(CUDA_MEMCPY3D_BATCH_OP) &&
                   offsetof(struct cudaMemcpy3DBatchOp, dst) == offsetof(CUDA_MEMCPY3D_BATCH_OP, dst) &&
                   offsetof(struct cudaMemcpy3DBatchOp, extent) == offsetof(CUDA_MEMCPY3D_BATCH_OP, extent),
               "the runtime's list is the driver's");

static struct box runtime_box(const struct cudaPitchedPtr *memory, const struct cudaPos *at) {
  return (struct box){(uintptr_t)memory->ptr, memory->pitch, memory->ysize, at->x, at->y, at->z};
}

/* With an array on one side, what the extent counts in is its element: whole rows are taken then. */
#define RUNTIME_SHAPE_3D(name, type)                                                                         \
  bool name(const void *copy, struct rp_cuda_op *out) {                                                      \
    const type *c = copy;                                                                                    \
    if (!c) return false;                                                                                    \
    const struct box to = runtime_box(&c->dstPtr, &c->dstPos), from = runtime_box(&c->srcPtr, &c->srcPos);   \
    uint64_t width = c->extent.width;                                                                        \
    if (c->srcArray) width = to.pitch > to.x ? to.pitch - to.x : 0;                                          \
    if (c->dstArray) width = from.pitch > from.x ? from.pitch - from.x : 0;                                  \
    fill(out, &to, &from, width, c->extent.height, c->extent.depth);                                         \
    return true;                                                                                             \
  }
RUNTIME_SHAPE_3D(rp_shape_runtime_copy_3d, struct cudaMemcpy3DParms)
RUNTIME_SHAPE_3D(rp_shape_runtime_copy_3d_peer, struct cudaMemcpy3DPeerParms)
