// Pubsubserver serves the in-memory Pub/Sub of cloud.google.com/go/pubsub/v2/pstest, and beside it
// an HTTP endpoint that tells what became of each message and makes calls fail on demand.
//
//	GET  /healthz                            ok, once it serves
//	GET  /messages                           all messages ever published, with their acks
//	POST /fail?method=Pull&code=ABORTED&times=2  the next two calls of Pull fail
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"

	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A publish request of the service may have 10 MB; grpc's own limit is 4 MB.
const maxRequestBytes = 11 << 20

// failures says which of the next calls fail.
type failures struct {
	mu   sync.Mutex
	next map[string]failure
}

type failure struct {
	code codes.Code
	left int
}

func (f *failures) set(method string, code codes.Code, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next[method] = failure{code, times}
}

// take gives the error of a call that is about to be made, if it has one.
func (f *failures) take(fullMethod string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	method := path.Base(fullMethod)
	fail := f.next[method]
	if fail.left == 0 {
		return nil
	}
	f.next[method] = failure{fail.code, fail.left - 1}
	return status.Errorf(fail.code, "%s was told to fail", method)
}

func (f *failures) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if err := f.take(info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (f *failures) stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if err := f.take(info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

type modack struct {
	DeadlineS int32 `json:"deadline_s"`
}

type message struct {
	ID          string            `json:"id"`
	Topic       string            `json:"topic"`
	Deliveries  int               `json:"deliveries"`
	Acks        int               `json:"acks"`
	Modacks     []modack          `json:"modacks"`
	Attributes  map[string]string `json:"attributes"`
	Data        []byte            `json:"data"`
	OrderingKey string            `json:"ordering_key"`
}

// admin serves the HTTP endpoint.
type admin struct {
	mu       sync.Mutex // pstest writes the counts of a message when it is asked for messages
	pubsub   *pstest.Server
	methods  map[string]bool
	failures *failures
}

func (a *admin) messages(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	messages := []message{}
	for _, m := range a.pubsub.Messages() {
		modacks := []modack{}
		for _, each := range m.Modacks {
			modacks = append(modacks, modack{each.AckDeadline})
		}
		attributes := m.Attributes
		if attributes == nil {
			attributes = map[string]string{}
		}
		messages = append(messages, message{
			m.ID, m.Topic, m.Deliveries, m.Acks, modacks, attributes, m.Data, m.OrderingKey,
		})
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(messages)
}

func (a *admin) fail(w http.ResponseWriter, r *http.Request) {
	method := r.FormValue("method")
	if !a.methods[method] {
		http.Error(w, fmt.Sprintf("Pub/Sub has no method %q", method), http.StatusBadRequest)
		return
	}
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(strconv.Quote(r.FormValue("code")))); err != nil || code == codes.OK {
		http.Error(w, fmt.Sprintf("grpc has no error code %q", r.FormValue("code")), http.StatusBadRequest)
		return
	}
	times, err := strconv.Atoi(r.FormValue("times"))
	if err != nil || times < 0 {
		http.Error(w, fmt.Sprintf("times must be a count, got %q", r.FormValue("times")), http.StatusBadRequest)
		return
	}
	a.failures.set(method, code, times)
}

func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /messages", a.messages)
	mux.HandleFunc("POST /fail", a.fail)
	return mux
}

// serve runs until a signal comes or a listener fails.
func serve(pubsubAddress, adminAddress string) error {
	// Its own server takes no interceptors, so it stays idle; what is behind it is served here.
	pubsub := pstest.NewServerWithAddress("127.0.0.1:0")
	defer pubsub.Close()
	fails := &failures{next: map[string]failure{}}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(fails.unary),
		grpc.StreamInterceptor(fails.stream),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxSendMsgSize(maxRequestBytes),
	)
	pb.RegisterPublisherServer(server, &pubsub.GServer)
	pb.RegisterSubscriberServer(server, &pubsub.GServer)
	pb.RegisterSchemaServiceServer(server, &pubsub.GServer)
	methods := map[string]bool{}
	for _, service := range server.GetServiceInfo() {
		for _, method := range service.Methods {
			methods[method.Name] = true
		}
	}
	pubsubListener, err := net.Listen("tcp", pubsubAddress)
	if err != nil {
		return err
	}
	adminListener, err := net.Listen("tcp", adminAddress)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: (&admin{pubsub: pubsub, methods: methods, failures: fails}).handler()}
	defer web.Close()
	defer server.Stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(pubsubListener) }()
	go func() { ended <- web.Serve(adminListener) }()
	fmt.Printf("listening on %s, admin on %s\n", pubsubListener.Addr(), adminListener.Addr())
	select {
	case <-signals:
		return nil
	case err := <-ended:
		return err
	}
}

func main() {
	address := flag.String("addr", "127.0.0.1:8685", "where Pub/Sub listens")
	adminAddress := flag.String("admin", "127.0.0.1:8686", "where the HTTP endpoint listens")
	minAckDeadline := flag.Duration(
		"min-ack-deadline", 10*time.Second, "the shortest ack deadline that a subscription may have")
	flag.Parse()
	if *minAckDeadline < time.Second {
		fmt.Fprintln(os.Stderr, "error: -min-ack-deadline must be at least 1s, got", *minAckDeadline)
		os.Exit(2)
	}
	pstest.SetMinAckDeadline(*minAckDeadline)
	if err := serve(*address, *adminAddress); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
