/* The call interposer. A scan lists the loaded modules, pins each while it reads its relocations (so that it
 * can neither be unloaded nor still be under construction), and changes the slots that mean one of the hooked
 * functions.
 *
 * The lock of dl_iterate_phdr is never held while the loader is called: the list is copied first. */
#include "agent/interpose.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define TYPE_JUMP_SLOT R_X86_64_JUMP_SLOT
#define TYPE_GLOB_DAT R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define TYPE_JUMP_SLOT R_AARCH64_JUMP_SLOT
#define TYPE_GLOB_DAT R_AARCH64_GLOB_DAT
#else
#error "the relocation types of this machine are not known here"
#endif

struct module {
  char *path;
  uintptr_t base;
  uintptr_t text_begin, text_end;   /* whole mapped range */
  uintptr_t relro_begin, relro_end; /* read-only after relocation */
};

struct module_list {
  struct module *modules;
  size_t count, capacity;
};

static pthread_mutex_t scan_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the list of modules ---- */

static void describe(const struct dl_phdr_info *info, struct module *module) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  module->base = info->dlpi_addr;
  module->text_begin = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + header->p_vaddr, end = begin + header->p_memsz;
    if (header->p_type == PT_LOAD) {
      if (begin < module->text_begin) module->text_begin = begin;
      if (end > module->text_end) module->text_end = end;
    } else if (header->p_type == PT_GNU_RELRO) { /* the loader protects whole pages only */
      module->relro_begin = begin & ~(page - 1);
      module->relro_end = end & ~(page - 1);
    }
  }
}

static int add_module(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  struct module_list *list = context;
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 64;
    struct module *grown = realloc(list->modules, capacity * sizeof *grown);
    if (!grown) return 1;
    list->modules = grown;
    list->capacity = capacity;
  }
  struct module *module = &list->modules[list->count];
  memset(module, 0, sizeof *module);
  module->path = strdup(info->dlpi_name ? info->dlpi_name : "");
  if (!module->path) return 1;
  describe(info, module);
  list->count++;
  return 0;
}

static void free_list(struct module_list *list) {
  for (size_t i = 0; i < list->count; i++)
    free(list->modules[i].path);
  free(list->modules);
}

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static bool skipped(const struct module *module, const char *const *skip) {
  uintptr_t self = (uintptr_t)(void *)&rp_interpose_scan;
  if (self >= module->text_begin && self < module->text_end) return true;
  const char *name = file_name(module->path);
  for (; skip && *skip; skip++)
    if (strncmp(name, *skip, strlen(*skip)) == 0) return true;
  return strncmp(name, "linux-vdso", 10) == 0 || strncmp(name, "ld-linux", 8) == 0;
}

/* ---- one module's relocations ---- */

struct dynamic {
  const ElfW(Sym) * symbols;
  const char *strings;
  size_t strings_bytes;
  const ElfW(Rela) * tables[2];
  size_t counts[2];
};

static uintptr_t address_of(const struct link_map *map, ElfW(Addr) pointer) {
  return pointer < map->l_addr ? map->l_addr + pointer
                               : pointer; /* relocated by glibc, not by every loader */
}

static bool read_dynamic(const struct link_map *map, struct dynamic *out) {
  memset(out, 0, sizeof *out);
  size_t plt_bytes = 0, rela_bytes = 0;
  for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
    switch (entry->d_tag) {
    case DT_SYMTAB:
      out->symbols = (const ElfW(Sym) *)address_of(map, entry->d_un.d_ptr);
      break;
    case DT_STRTAB:
      out->strings = (const char *)address_of(map, entry->d_un.d_ptr);
      break;
    case DT_STRSZ:
      out->strings_bytes = entry->d_un.d_val;
      break;
    case DT_JMPREL:
      out->tables[0] = (const ElfW(Rela) *)address_of(map, entry->d_un.d_ptr);
      break;
    case DT_PLTRELSZ:
      plt_bytes = entry->d_un.d_val;
      break;
    case DT_RELA:
      out->tables[1] = (const ElfW(Rela) *)address_of(map, entry->d_un.d_ptr);
      break;
    case DT_RELASZ:
      rela_bytes = entry->d_un.d_val;
      break;
    case DT_PLTREL:
      if (entry->d_un.d_val != DT_RELA) return false;
      break;
    default:
      break;
    }
  }
  out->counts[0] = out->tables[0] ? plt_bytes / sizeof(ElfW(Rela)) : 0;
  out->counts[1] = out->tables[1] ? rela_bytes / sizeof(ElfW(Rela)) : 0;
  return out->symbols && out->strings;
}

static struct rp_hook *hook_named(struct rp_hook *hooks, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(hooks[i].name, name) == 0) return &hooks[i];
  return NULL;
}

/* The first bytes of all hooked names, so that most symbols are dismissed at once. */
static bool may_be_hooked(const struct rp_hook *hooks, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++)
    if (hooks[i].name[0] == name[0] && hooks[i].name[1] == name[1]) return true;
  return false;
}

/* The function that the slot means. A slot that still points into its own module is either bound lazily or
 * bound to a function of that module; the loader's answer is right for both. Never the value of the symbol
 * itself: for an IFUNC that is its resolver. */
static void *meant_by(const struct module *module, void *handle, const char *name, void *value) {
  uintptr_t at = (uintptr_t)value;
  if (at == 0) return NULL; /* weak and absent */
  if (at < module->text_begin || at >= module->text_end) return value;
  void *found = dlsym(RTLD_DEFAULT, name);
  return found ? found : dlsym(handle, name);
}

static bool still_mapped(void *function) {
  Dl_info info;
  return dladdr(function, &info) != 0;
}

bool rp_interpose_store(void **slot, void *value, bool read_only_after_relocation) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *start = (void *)((uintptr_t)slot & ~(page - 1));
  if (read_only_after_relocation && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (read_only_after_relocation) (void)mprotect(start, page, PROT_READ);
  return true;
}

static void patch_slot(const struct module *module, void *handle, void **slot, struct rp_hook *hook,
                       struct rp_interpose_result *result) {
  void *value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (value == hook->replacement) return;
  void *meant = meant_by(module, handle, hook->name, value);
  if (!meant || meant == hook->replacement) return;
  void *real = __atomic_load_n(hook->real, __ATOMIC_ACQUIRE);
  if (!real || (real != meant && !still_mapped(real)))
    __atomic_store_n(hook->real, meant, __ATOMIC_RELEASE);
  else if (real != meant) {
    hook->conflicts++;
    return;
  }
  uintptr_t at = (uintptr_t)slot;
  if (!rp_interpose_store(slot, hook->replacement, at >= module->relro_begin && at < module->relro_end)) {
    result->failed++;
    return;
  }
  hook->slots++;
  if ((uintptr_t)meant >= module->text_begin && (uintptr_t)meant < module->text_end) hook->own_slots++;
  result->patched++;
}

static void patch_table(const struct module *module, void *handle, const struct link_map *map,
                        const struct dynamic *dynamic, int table, struct rp_hook *hooks, size_t hook_count,
                        struct rp_interpose_result *result) {
  for (size_t i = 0; i < dynamic->counts[table]; i++) {
    const ElfW(Rela) *entry = &dynamic->tables[table][i];
    unsigned type = (unsigned)ELF64_R_TYPE(entry->r_info);
    if ((type != TYPE_JUMP_SLOT && type != TYPE_GLOB_DAT) || entry->r_addend != 0) continue;
    const ElfW(Sym) *symbol = &dynamic->symbols[ELF64_R_SYM(entry->r_info)];
    if (dynamic->strings_bytes && symbol->st_name >= dynamic->strings_bytes) continue;
    const char *name = dynamic->strings + symbol->st_name;
    if (!may_be_hooked(hooks, hook_count, name)) continue;
    struct rp_hook *hook = hook_named(hooks, hook_count, name);
    uintptr_t at = map->l_addr + entry->r_offset;
    if (hook && at % sizeof(void *) == 0) patch_slot(module, handle, (void **)at, hook, result);
  }
}

static void patch_module(const struct module *module, struct rp_hook *hooks, size_t count,
                         struct rp_interpose_result *result) {
  bool program = module->path[0] == '\0';
  void *handle = dlopen(program ? NULL : module->path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (!handle) return; /* gone meanwhile, or without a name the loader knows */
  struct link_map *map = NULL;
  struct dynamic dynamic;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_addr == module->base &&
      read_dynamic(map, &dynamic)) {
    result->modules++;
    for (int table = 0; table < 2; table++)
      patch_table(module, handle, map, &dynamic, table, hooks, count, result);
  }
  (void)dlclose(handle);
}

void rp_interpose_scan(struct rp_hook *hooks, size_t count, const char *const *skip,
                       struct rp_interpose_result *result) {
  struct module_list list = {0};
  memset(result, 0, sizeof *result);
  pthread_mutex_lock(&scan_lock);
  (void)dl_iterate_phdr(add_module, &list);
  for (size_t i = 0; i < list.count; i++)
    if (!skipped(&list.modules[i], skip)) patch_module(&list.modules[i], hooks, count, result);
  pthread_mutex_unlock(&scan_lock);
  free_list(&list);
}

/* ---- looking without touching ---- */

static int read_changes(struct dl_phdr_info *info, size_t size, void *context) {
  uint64_t *changes = context;
  if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs)
    *changes = (uint64_t)info->dlpi_adds + ((uint64_t)info->dlpi_subs << 32);
  return 1;
}

uint64_t rp_interpose_module_changes(void) {
  uint64_t changes = 0;
  (void)dl_iterate_phdr(read_changes, &changes);
  return changes;
}

struct wanted_module {
  const char *prefix;
  char *out;
  size_t out_size;
};

static int match_module(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size;
  struct wanted_module *wanted = context;
  const char *path = info->dlpi_name ? info->dlpi_name : "";
  if (strncmp(file_name(path), wanted->prefix, strlen(wanted->prefix)) != 0) return 0;
  size_t length = strlen(path);
  if (length >= wanted->out_size) return 0;
  memcpy(wanted->out, path, length + 1);
  return 1;
}

bool rp_interpose_find_module(const char *prefix, char *out, size_t out_size) {
  struct wanted_module wanted = {prefix, out, out_size};
  return dl_iterate_phdr(match_module, &wanted) == 1;
}
