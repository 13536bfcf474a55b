#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matrix.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/sampling.h"

// The fused ops of a recorded program, as plain data. Every op is carried out by all threads together, piece by piece: a
// piece is a range of the op's units (rows, blocks of weights, attention tasks), and one output is computed by one thread
// in one fixed order, whoever takes the piece.

namespace slipstream {

enum Domain : int { kTokens = 0, kLogits = 1 };  // what the rows of a buffer are: the batch's tokens, or its wanted logits
enum class Gate : int { Silu, GeluTanh };
enum class KVType : int { F32, F16, BF16 };

// Columns of a buffer of float32 rows; buffer -1: none. Rows are padded to whole groups of 32 columns, with zeros.
struct Ref {
    int buffer = -1;
    int column = 0;
    SLIPSTREAM_EVERYWHERE explicit operator bool() const { return buffer >= 0; }
};

struct Rows {
    float* data = nullptr;
    std::ptrdiff_t ld = 0;     // floats between rows
    std::ptrdiff_t width = 0;  // columns that may be written
};

// Quantised activations of one domain, in tiles.
struct Tiles {
    std::int32_t* data = nullptr;
    std::ptrdiff_t copy_words = 0;  // distance between the threads' own copies; 0: shared
    int groups = 0;
};

// How the rows of a domain fall into tiles of nearly equal size.
struct Tiling {
    int rows = 0, num_tiles = 0;
    const int* start = nullptr;  // [num_tiles + 1]
    const int* tile = nullptr;   // [rows]
};

struct AttentionTask {
    int row, kv_head;
    int token, num_queries;       // the batch's tokens
    int position;                 // of the first query
    int first_chunk, last_chunk;  // inclusive
    int part;                     // where partial results begin, or -1: finish in place
    int part_step;                // parts from one query to the next
};
struct AttentionMerge {
    int token, kv_head, position;
    int part;         // the part of `first_chunk`
    int first_chunk;  // of the row's tasks
};
// Who computes what in the attention of all layers with one window.
struct AttentionSchedule {
    const AttentionTask* tasks = nullptr;
    const int* task_bounds = nullptr;  // [num_threads + 1]
    const AttentionMerge* merges = nullptr;
    int num_merges = 0;
    float* parts = nullptr;
    bool write_first = false;  // K and V are written, and a barrier passed, before any query is answered
};

struct Step {
    int num_threads = 1;
    const std::int32_t* token_ids = nullptr;    // [T]
    const std::int32_t* positions = nullptr;    // [T]
    const std::int32_t* slots = nullptr;        // [T]
    const std::int32_t* kv_len = nullptr;       // [R]
    const std::int32_t* block_table = nullptr;  // [R, table_width]
    int table_width = 0;
    const std::int32_t* logits_rows = nullptr;  // [L]
    Tiling tiling[2];                           // by domain
    const Rows* rows = nullptr;                 // by buffer
    const Tiles* tiles = nullptr;               // by tile buffer
    const AttentionSchedule* schedules = nullptr;
    const MoeWork* moe = nullptr;     // by workspace
    float* const* scratch = nullptr;  // by thread
};

struct EmbedOp {
    Matrix table;
    float scale = 1.0f;
    Ref out;
};

// Row by row: v = in; v = norm(v) * post_weight; v *= scale; v += residual -> sum; v = norm(v) * weight -> out, tiles.
// Every stage is optional.
struct TokenOp {
    Domain domain = kTokens;
    bool gather = false;  // row i of the outputs comes from row logits_rows[i] of the inputs
    int columns = 0;
    Ref in, residual, sum, out;
    const float* post_weight = nullptr;  // padded to whole groups
    float post_eps = 0.0f;
    float scale = 1.0f;
    const float* weight = nullptr;
    float eps = 0.0f;
    int tiles = -1;
};

// Each group of `heads_size` columns normalised by itself, in place of a copy.
struct HeadNormOp {
    int columns = 0, head_dim = 0;
    Ref in, out;
    const float* weight = nullptr;
    float eps = 0.0f;
};

struct RopeTableView {
    const float* cos = nullptr;  // [max_position, pairs]
    const float* sin = nullptr;
    int pairs = 0, max_position = 0;
    bool interleaved = false;
};

struct RopeOp {
    int columns = 0, head_dim = 0;
    Ref in, out;
    RopeTableView table;
};

struct Segment {
    Matrix matrix;
    const float* bias = nullptr;  // padded to whole blocks
    Ref residual, out;
    float soft_cap = 0.0f;  // 0: none
};

// Products of one input with several matrices. gated: segments 0 and 1 are gate and up; act(gate) * up -> out, tiles.
struct LinearOp {
    Domain domain = kTokens;
    int tiles = -1;  // quantised input
    Ref in;          // or float32 input, for dense matrices
    const Segment* segments = nullptr;
    int num_segments = 0;
    bool gated = false;
    Gate gate = Gate::Silu;
    Ref gated_out;
    int gated_tiles = -1;
    const int* bounds = nullptr;  // [num_threads + 1], where threads begin: blocks over all segments; gated: pairs of blocks
};

struct GateOp {
    int columns = 0;
    Gate gate = Gate::Silu;
    Ref gate_in, up_in, out;
    int tiles = -1;
};

struct SoftCapOp {
    Domain domain = kTokens;
    int columns = 0;
    float cap = 0.0f;
    Ref in, out;
};

struct AttentionOp {
    int num_heads = 0, num_kv_heads = 0, head_dim = 0;
    float scale = 1.0f;
    int window = 0;         // tokens; 0: all
    float soft_cap = 0.0f;  // 0: none
    Ref q, k, v, out;
    int tiles = -1;
    const float* q_norm = nullptr;  // [head_dim]
    const float* k_norm = nullptr;
    float q_eps = 0.0f, k_eps = 0.0f;
    RopeTableView q_rope, k_rope;  // pairs 0: none
    int schedule = 0;
    KVType kv_type = KVType::F32;
    int block_size = 0;
    // Block b, KV head h at (b * num_kv_heads + h) * 2 * block_size * head_dim: K [head_dim][block_size], V [block_size][head_dim].
    void* cache = nullptr;
};

// Softmax over the logits of all experts, and the k largest: k weights, then k expert numbers, all in float32.
struct RouteOp {
    int num_experts = 0, top_k = 0;
    bool normalise = false;  // divide the weights by their sum
    Ref in, out;
};

// sum over the ranks of weight * down(act(gate x) * up x).
struct MoeOp {
    int num_experts = 0, top_k = 0;
    Gate gate = Gate::Silu;
    Ref in, routing, out;
    const Matrix* gates = nullptr;  // [E], all dense or all quantised, like `ups`
    const Matrix* ups = nullptr;
    const Matrix* downs = nullptr;  // [E], all dense or all quantised
    int work = 0;                   // number of the workspace
};

// One instruction set's compiled kernels. They compute units first .. last - 1; `thread` says whose scratch is used. `stores`:
// whether a token op writes `sum` and `out` too, or only the thread's own copy of the tiles.
struct KernelTable {
    const char* name;
    void (*embed)(const EmbedOp&, const Step&, int thread, int first, int last);
    void (*token)(const TokenOp&, const Step&, int thread, int first, int last, bool stores);
    void (*head_norm)(const HeadNormOp&, const Step&, int thread, int first, int last);
    void (*rope)(const RopeOp&, const Step&, int thread, int first, int last);
    void (*linear)(const LinearOp&, const Step&, int thread, int first, int last);
    void (*gate)(const GateOp&, const Step&, int thread, int first, int last);
    void (*soft_cap)(const SoftCapOp&, const Step&, int thread, int first, int last);
    void (*attention_write)(const AttentionOp&, const Step&, int thread, int first, int last);
    void (*attention)(const AttentionOp&, const Step&, int thread, int first, int last);
    void (*attention_merge)(const AttentionOp&, const Step&, int thread, int first, int last);
    void (*route)(const RouteOp&, const Step&, int thread, int first, int last);
    void (*moe_group)(const MoeOp&, const Step&);                                  // one thread
    void (*moe_gather)(const MoeOp&, const Step&, int first, int last);            // routed rows
    void (*moe_gated)(const MoeOp&, const Step&, int thread, int first, int last);  // slices
    void (*moe_down)(const MoeOp&, const Step&, int thread, int first, int last);   // blocks of the result
    // One row of logits [n]; `scratch` [n].
    Drawn (*draw)(const float* logits, int n, const DrawRow& row, Ranked* scratch);
    Drawn (*draw_reduced)(const float* logits, int n, const std::int32_t* ids, const DrawRow& row, Ranked* scratch);
    Drawn (*draw_processed)(const double* logits, int n, const DrawRow& row, Ranked* scratch);
    void (*logprob)(const float* logits, int n, LogprobRow& row, Ranked* scratch);
    // Ceilings; the first two return multiply-adds.
    std::int64_t (*spin_maddubs)(std::int64_t rounds, float* sink);
    std::int64_t (*spin_fma)(std::int64_t rounds, float* sink);
    void (*read_streams)(const std::uint8_t* p, std::int64_t bytes, float* sink);
};

constexpr int kChunk = 256;       // keys; long contexts are split at its multiples
constexpr int kKeyTile = 32;      // keys
constexpr int kTileTokens = 6;    // activations: tokens per tile, at most
constexpr int kTileGroupWords = 11;

// Queries that share a task, at most: every tile of keys is converted once for about 128 rows (heads of queries).
constexpr SLIPSTREAM_EVERYWHERE int query_block(const AttentionOp& op) {
    const int n = 128 / (op.num_heads / op.num_kv_heads) / 8 * 8;
    return n > 64 ? 64 : n < 8 ? 8 : n;
}
int attention_scratch_floats(const AttentionOp& op);
constexpr SLIPSTREAM_EVERYWHERE std::ptrdiff_t part_floats(const AttentionOp& op) {
    return static_cast<std::ptrdiff_t>(op.num_heads / op.num_kv_heads) * (op.head_dim + 8);
}

const KernelTable& scalar_kernels();
#if defined(__x86_64__)
const KernelTable& avx2_kernels();
#endif

}  // namespace slipstream
