/* Libraries that use memory by calls which can be seen but not stopped. Owns what is known of the loaded
 * modules.
 *
 * Who finds the driver's launches by name has to hold their names: in read-only data, which a library that
 * only imports them does not. Device code without the runtime's registration among the imports means that the
 * library holds the runtime itself, and so its names too, wherever it may keep them. */
#include "agent/unstoppable.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/interpose.h"
#include "agent/log.h"
#include "agent/state.h"

/* A file with more is no library that a linker made. */
#define SECTIONS_MOST 4096
#define NAMES_MOST (1u << 20)
#define CHUNK_BYTES (1u << 16)

/* Without the "cu" before them, so that this file does not hold what it looks for. */
static const char *const names[] = {"LaunchKernel", "LaunchKernelEx", "GetProcAddress", "GetProcAddress_v2"};

/* The driver, its tools and the runtime are who is called; what NCCL uses is told by its own calls. */
static const char *const no_callers[] = {"libcuda.so", "libcudart.so",    "libcupti.so",   "libnccl.so",
                                         "libnvidia-", "libcudadebugger", "librecvpool.so"};

static _Atomic bool known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t looked; /* state of the list of modules, plus 1; 0: never. Set with the lock */
static uint64_t *seen_modules;  /* lock: what stands for those that were looked at */
static size_t seen_count;       /* lock */

/* ---- a file ---- */

static bool read_at(int file, void *into, size_t bytes, uint64_t offset) {
  char *at = into;
  while (bytes) {
    ssize_t got = pread(file, at, bytes, (off_t)offset);
    if (got <= 0) return false;
    at += got;
    bytes -= (size_t)got;
    offset += (uint64_t)got;
  }
  return true;
}

struct sections {
  ElfW(Shdr) * headers;
  size_t count;
  char *names; /**< ends with a 0 */
  size_t names_bytes;
};

static void sections_fini(struct sections *sections) {
  free(sections->headers);
  free(sections->names);
}

/* Text of a section with a 0 behind it; NULL if it is missing or too long. */
static char *read_text(int file, const ElfW(Shdr) * header, size_t most) {
  if (header->sh_type == SHT_NOBITS || header->sh_size > most) return NULL;
  char *text = malloc(header->sh_size + 1);
  if (text && !read_at(file, text, header->sh_size, header->sh_offset)) {
    free(text);
    return NULL;
  }
  if (text) text[header->sh_size] = '\0';
  return text;
}

static bool sections_read(int file, struct sections *out) {
  ElfW(Ehdr) head;
  *out = (struct sections){0};
  if (!read_at(file, &head, sizeof head, 0) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (head.e_shentsize != sizeof *out->headers || !head.e_shnum || head.e_shnum > SECTIONS_MOST) return false;
  if (head.e_shstrndx >= head.e_shnum) return false;
  out->count = head.e_shnum;
  out->headers = malloc(out->count * sizeof *out->headers);
  if (!out->headers || !read_at(file, out->headers, out->count * sizeof *out->headers, head.e_shoff))
    return false;
  out->names_bytes = out->headers[head.e_shstrndx].sh_size;
  out->names = read_text(file, &out->headers[head.e_shstrndx], NAMES_MOST);
  return out->names != NULL;
}

static const char *section_name(const struct sections *sections, size_t i) {
  uint32_t at = sections->headers[i].sh_name;
  return at < sections->names_bytes ? sections->names + at : "";
}

/* Whether `name` and its 0 stand in `bytes` of text with `before` before them. */
static bool holds(const char *text, size_t bytes, const char *before, size_t before_bytes, const char *name) {
  size_t length = strlen(name) + 1;
  const char *at = text, *end = text + bytes;
  while ((at = memmem(at, (size_t)(end - at), name, length))) {
    if ((size_t)(at - text) >= before_bytes && memcmp(at - before_bytes, before, before_bytes) == 0)
      return true;
    at++;
  }
  return false;
}

/* The names of what a module imports, one after the other. */
struct imported {
  char *text;
  size_t bytes;
};

static bool imports(const struct imported *imported, const char *name) {
  return holds(imported->text, imported->bytes, "", 1, name);
}

/* Who imports a function calls it by that, and may say its name in messages. */
static bool has_name(const char *data, size_t bytes, const struct imported *imported) {
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
    if (holds(data, bytes, "\0cu", 3, names[n]) &&
        !holds(imported->text, imported->bytes, "\0cu", 3, names[n]))
      return true;
  return false;
}

static bool section_has_name(int file, const ElfW(Shdr) * header, const struct imported *imported) {
  enum { OVERLAP = 64 };
  char *chunk = malloc(OVERLAP + CHUNK_BYTES);
  bool found = false;
  if (!chunk) return false;
  memset(chunk, 0, OVERLAP); /* the first name may stand at the very begin */
  for (uint64_t done = 0; done < header->sh_size && !found;) {
    uint64_t left = header->sh_size - done;
    size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
    if (!read_at(file, chunk + OVERLAP, bytes, header->sh_offset + done)) break;
    found = has_name(chunk, OVERLAP + bytes, imported);
    if (bytes >= OVERLAP) memmove(chunk, chunk + bytes, OVERLAP);
    done += bytes;
  }
  free(chunk);
  return found;
}

static bool find_section(const struct sections *sections, const char *name, size_t *found) {
  for (size_t i = 0; i < sections->count; i++) {
    if (strcmp(section_name(sections, i), name) != 0) continue;
    *found = i;
    return true;
  }
  return false;
}

static bool reads_names(int file, const struct sections *sections, const struct imported *imported) {
  for (size_t i = 0; i < sections->count; i++) {
    const ElfW(Shdr) *header = &sections->headers[i];
    if (header->sh_type != SHT_PROGBITS || !strstr(section_name(sections, i), "rodata")) continue;
    if (section_has_name(file, header, imported)) return true;
  }
  return false;
}

static bool is_one(int file, const struct sections *sections, const struct imported *imported) {
  size_t code;
  if (find_section(sections, ".nv_fatbin", &code) && !imports(imported, "__cudaRegisterFatBinary"))
    return true;
  bool looks_up = imports(imported, "dlsym") || imports(imported, "dlvsym");
  return looks_up && reads_names(file, sections, imported);
}

bool rp_unstoppable_file(const char *path) {
  struct sections sections;
  size_t dynamic;
  bool is = false;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  if (sections_read(file, &sections) && find_section(&sections, ".dynstr", &dynamic)) {
    struct imported imported = {.text = read_text(file, &sections.headers[dynamic], SIZE_MAX - 1),
                                .bytes = sections.headers[dynamic].sh_size};
    is = imported.text && is_one(file, &sections, &imported);
    free(imported.text);
  }
  sections_fini(&sections);
  (void)close(file);
  return is;
}

/* ---- the loaded modules ---- */

struct paths {
  char **at;
  size_t count, capacity;
};

static uint64_t stands_for(const struct dl_phdr_info *info) {
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a (public domain) */
  for (const char *at = info->dlpi_name ? info->dlpi_name : ""; *at; at++)
    hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
  return hash ^ (uint64_t)info->dlpi_addr;
}

/* Under the lock. True: it was not known yet. */
static bool is_new(uint64_t module) {
  for (size_t i = 0; i < seen_count; i++)
    if (seen_modules[i] == module) return false;
  uint64_t *grown = realloc(seen_modules, (seen_count + 1) * sizeof *grown);
  if (!grown) return true; /* looked at again next time */
  seen_modules = grown;
  seen_modules[seen_count++] = module;
  return true;
}

static bool calls_by_itself(const char *path) {
  const char *slash = strrchr(path, '/');
  const char *name = slash ? slash + 1 : path;
  for (size_t i = 0; i < sizeof no_callers / sizeof no_callers[0]; i++)
    if (strncmp(name, no_callers[i], strlen(no_callers[i])) == 0) return false;
  return true;
}

static int add_path(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  struct paths *list = context;
  const char *path = info->dlpi_name && info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe";
  if (!is_new(stands_for(info)) || !calls_by_itself(path)) return 0;
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    char **grown = realloc(list->at, capacity * sizeof *grown);
    if (!grown) return 1;
    list->at = grown;
    list->capacity = capacity;
  }
  char *copy = strdup(path);
  if (copy) list->at[list->count++] = copy;
  return !copy;
}

/* Under the lock. */
static void look_at_new_ones(void) {
  struct paths list = {0};
  (void)dl_iterate_phdr(add_path, &list);
  for (size_t i = 0; i < list.count; i++) {
    if (!rp_unstoppable_known() && rp_unstoppable_file(list.at[i])) {
      rp_verbose("%s uses memory by calls that cannot be stopped", list.at[i]);
      rp_unstoppable_seen();
    }
    free(list.at[i]);
  }
  free(list.at);
}

bool rp_unstoppable_look(void) {
  if (rp_unstoppable_known()) return true;
  uint64_t changes = rp_interpose_module_changes() + 1;
  if (changes == atomic_load_explicit(&looked, memory_order_acquire)) return rp_unstoppable_known();
  if (!rp_lock(&lock)) return rp_unstoppable_known();
  if (changes != atomic_load_explicit(&looked, memory_order_relaxed)) look_at_new_ones();
  atomic_store_explicit(&looked, changes, memory_order_release);
  rp_unlock(&lock);
  return rp_unstoppable_known();
}

bool rp_unstoppable_known(void) {
  return atomic_load_explicit(&known, memory_order_relaxed);
}

void rp_unstoppable_seen(void) {
  atomic_store_explicit(&known, true, memory_order_relaxed);
}
