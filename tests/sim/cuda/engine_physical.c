/* Owns physical memory: one sparse memfd per device (and one per exportable allocation), its accounting
 * against the device's capacity, the poison that fresh memory is filled with, and raw address space. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE_FILE_BYTES ((off_t)1 << 46) /* sparse: offsets are handed out once and never again */
#define POISON_CHUNK_BYTES (256u << 10)

struct device_memory {
  int file; /* 0 = not made yet; descriptor 0 is never ours */
  uint64_t next_offset, used_bytes, peak_bytes;
};

pthread_mutex_t sim_memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_memory devices[SIM_MAX_DEVICES];
static uint64_t last_physical_id;
static uint32_t poison[POISON_CHUNK_BYTES / sizeof(uint32_t)];
static pthread_once_t poison_once = PTHREAD_ONCE_INIT;

static void make_poison(void) {
  for (size_t i = 0; i < sizeof(poison) / sizeof(poison[0]); i++)
    poison[i] = RPSIM_POISON_WORD;
}

/* Every exportable allocation has a file of its own, of which a device has more than a shell allows. */
static bool raise_file_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* Makes a memfd of the given (sparse) size, above the standard descriptors. */
static int make_file(const char *name, off_t size_bytes) {
  int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0 && errno == EMFILE && raise_file_limit()) file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0) return -1;
  if (file <= STDERR_FILENO) {
    int higher = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(file);
    file = higher;
  }
  if (file >= 0 && ftruncate(file, size_bytes) != 0) {
    close(file);
    return -1;
  }
  return file;
}

static bool fill_with_poison(int file, uint64_t offset_bytes, uint64_t size_bytes) {
  pthread_once(&poison_once, make_poison);
  for (uint64_t done = 0; done < size_bytes;) {
    uint64_t left = size_bytes - done;
    size_t chunk = left < sizeof(poison) ? (size_t)left : sizeof(poison);
    ssize_t written = pwrite(file, poison, chunk, (off_t)(offset_bytes + done));
    if (written <= 0) return false;
    done += (uint64_t)written;
  }
  return true;
}

/* Books the bytes on the device, or says that there is no room. */
static bool account_locked(int device, uint64_t bytes) {
  struct device_memory *memory = &devices[device];
  uint64_t capacity = sim_device_capacity_bytes(device);
  if (bytes > capacity || memory->used_bytes > capacity - bytes) return false;
  memory->used_bytes += bytes;
  if (memory->used_bytes > memory->peak_bytes) memory->peak_bytes = memory->used_bytes;
  return true;
}

static bool place_locked(struct sim_physical *physical, bool exportable) {
  struct device_memory *memory = &devices[physical->device];
  if (exportable) {
    physical->file = make_file("rpsim-allocation", (off_t)physical->size_bytes);
    physical->own_file = true;
    return physical->file >= 0;
  }
  if (!memory->file) {
    int file = make_file("rpsim-device", DEVICE_FILE_BYTES);
    if (file < 0) return false;
    memory->file = file;
  }
  physical->file = memory->file;
  physical->offset_bytes = memory->next_offset;
  memory->next_offset += physical->size_bytes;
  return true;
}

struct sim_physical *sim_physical_new(int device, uint64_t size_bytes, uint64_t accounted_bytes,
                                      bool exportable) {
  struct sim_physical *physical = calloc(1, sizeof(*physical));
  if (!physical || device < 0 || device >= SIM_MAX_DEVICES) {
    free(physical);
    return NULL;
  }
  *physical = (struct sim_physical){
      .refs = 1, .device = device, .size_bytes = size_bytes, .accounted_bytes = accounted_bytes, .file = -1};
  pthread_mutex_lock(&sim_memory_lock);
  bool booked = account_locked(device, accounted_bytes);
  bool placed = booked && place_locked(physical, exportable);
  physical->id = ++last_physical_id;
  if (booked && !placed) devices[device].used_bytes -= accounted_bytes;
  pthread_mutex_unlock(&sim_memory_lock);
  if (!placed) {
    free(physical);
    return NULL;
  }
  if (fill_with_poison(physical->file, physical->offset_bytes, size_bytes)) return physical;
  pthread_mutex_lock(&sim_memory_lock);
  sim_physical_unref_locked(physical);
  pthread_mutex_unlock(&sim_memory_lock);
  return NULL;
}

struct sim_physical *sim_physical_import(int device, int file) {
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size <= 0 || status.st_size % SIM_GRANULE_BYTES) return NULL;
  struct sim_physical *physical = calloc(1, sizeof(*physical));
  int own = physical ? fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
  if (own < 0) {
    free(physical);
    return NULL;
  }
  *physical = (struct sim_physical){
      .refs = 1, .device = device, .size_bytes = (uint64_t)status.st_size, .file = own, .own_file = true};
  pthread_mutex_lock(&sim_memory_lock);
  physical->id = ++last_physical_id;
  pthread_mutex_unlock(&sim_memory_lock);
  return physical;
}

/* The other process's file by its descriptor there: as with the driver, that process has to live. */
struct sim_physical *sim_physical_open(int device, pid_t process, int file, uint64_t offset_bytes,
                                       uint64_t size_bytes) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)process, file);
  struct sim_physical *physical = calloc(1, sizeof(*physical));
  int own = physical ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (own < 0) {
    free(physical);
    return NULL;
  }
  *physical = (struct sim_physical){.refs = 1,
                                    .device = device,
                                    .offset_bytes = offset_bytes,
                                    .size_bytes = size_bytes,
                                    .file = own,
                                    .own_file = true};
  pthread_mutex_lock(&sim_memory_lock);
  physical->id = ++last_physical_id;
  pthread_mutex_unlock(&sim_memory_lock);
  return physical;
}

void sim_physical_ref_locked(struct sim_physical *physical) {
  physical->refs++;
}

void sim_physical_unref_locked(struct sim_physical *physical) {
  if (--physical->refs > 0) return;
  devices[physical->device].used_bytes -= physical->accounted_bytes;
  if (physical->own_file)
    close(physical->file);
  else
    fallocate(physical->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->offset_bytes,
              (off_t)physical->size_bytes);
  free(physical);
}

int sim_physical_map(const struct sim_physical *physical, uintptr_t address, uint64_t size_bytes,
                     bool access) {
  void *at = mmap((void *)address, size_bytes, access ? PROT_READ | PROT_WRITE : PROT_NONE,
                  MAP_SHARED | MAP_FIXED, physical->file, (off_t)physical->offset_bytes);
  return at == MAP_FAILED ? -1 : 0;
}

uintptr_t sim_address_space_take(uint64_t size_bytes, uint64_t alignment, uintptr_t hint) {
  uint64_t slack = alignment > SIM_PAGE_BYTES ? alignment : 0;
  if (size_bytes > UINT64_MAX / 4 || slack > UINT64_MAX / 4) return 0;
  void *at =
      mmap((void *)hint, size_bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  uintptr_t start = (uintptr_t)at;
  if (!slack) return start;
  uintptr_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(at, aligned - start);
  if (aligned + size_bytes < start + size_bytes + slack)
    munmap((void *)(aligned + size_bytes), start + slack - aligned);
  return aligned;
}

void sim_address_space_close(uintptr_t address, uint64_t size_bytes) {
  mmap((void *)address, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
}

void sim_address_space_return(uintptr_t address, uint64_t size_bytes) {
  munmap((void *)address, size_bytes);
}

static uint64_t read_counter(int device, bool peak) {
  if (device < 0 || device >= SIM_MAX_DEVICES) return 0;
  pthread_mutex_lock(&sim_memory_lock);
  uint64_t bytes = peak ? devices[device].peak_bytes : devices[device].used_bytes;
  pthread_mutex_unlock(&sim_memory_lock);
  return bytes;
}

RPSIM_EXPORT uint64_t rpsim_physical_bytes(int device) {
  return read_counter(device, false);
}

RPSIM_EXPORT uint64_t rpsim_physical_peak_bytes(int device) {
  return read_counter(device, true);
}

void sim_engine_memory_info(int device, uint64_t *free_bytes, uint64_t *total_bytes) {
  uint64_t capacity = sim_device_capacity_bytes(device);
  uint64_t used = read_counter(device, false);
  *total_bytes = capacity;
  *free_bytes = used < capacity ? capacity - used : 0;
}
