package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
)

const (
	controllerName = "leno.dev/controller"
	// statusLimit is how long statuses may take to follow; usually they take a second.
	statusLimit = 30 * time.Second
)

// route holds the fields that an HTTPRoute and a GRPCRoute have in common.
type route struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ParentRefs []gatewayv1.ParentReference `json:"parentRefs"`
		Rules      []struct {
			BackendRefs []gatewayv1.BackendRef `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
	Status gatewayv1.RouteStatus `json:"status"`
}

// checkStatuses applies the routes of all cases for meshes, and requires that the status of each is
// what the specification demands, because the suite does not check it. Two of them replace others of
// the same name, so their generation is not the first.
func (c *cluster) checkStatuses() {
	files, err := fs.Glob(conformance.Manifests, "tests/mesh/*.yaml")
	require.NoError(c.t, err)
	for _, file := range files {
		text, err := fs.ReadFile(conformance.Manifests, file)
		require.NoError(c.t, err)
		c.apply(text)
	}
	seen := 0
	for _, namespace := range namespaces {
		for _, kind := range []string{"HTTPRouteList", "GRPCRouteList"} {
			seen += c.awaitStatuses(namespace, kind)
		}
	}
	// All but the one that replaces another one.
	require.GreaterOrEqual(c.t, seen, len(files)-1)
	c.t.Logf("%d routes have the status that they should", seen)
}

// awaitStatuses waits until the routes of a namespace have the right statuses, and returns their
// number.
func (c *cluster) awaitStatuses(namespace, kind string) int {
	routes := unstructured.UnstructuredList{}
	routes.SetGroupVersionKind(gatewayv1.SchemeGroupVersion.WithKind(kind))
	var last error
	err := wait.PollUntilContextTimeout(c.t.Context(), time.Second/2, statusLimit, true, func(ctx context.Context) (bool, error) {
		wrong := c.List(ctx, &routes, client.InNamespace(namespace))
		for _, found := range routes.Items {
			wrong = errors.Join(wrong, c.checkStatus(ctx, found))
		}
		// After the timeout, errors only report the timeout.
		if ctx.Err() == nil {
			last = wrong
		}
		return wrong == nil, nil
	})
	require.NoError(c.t, err, "%v", last)
	return len(routes.Items)
}

// checkStatus returns what is wrong with the status of one of the suite's routes.
func (c *cluster) checkStatus(ctx context.Context, found unstructured.Unstructured) error {
	var route route
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &route); err != nil {
		return err
	}
	name := found.GetKind() + " " + route.Name
	resolved, err := c.resolved(ctx, route)
	if err != nil {
		return err
	}
	if len(route.Status.Parents) != len(route.Spec.ParentRefs) {
		return fmt.Errorf("%s: status of %d parents", name, len(route.Status.Parents))
	}
	for nth, parent := range route.Status.Parents {
		if !reflect.DeepEqual(parent.ParentRef, route.Spec.ParentRefs[nth]) || parent.ControllerName != controllerName {
			return fmt.Errorf("%s: status of parent %s by %s", name, parent.ParentRef.Name, parent.ControllerName)
		}
		for kind, wanted := range map[gatewayv1.RouteConditionType]metav1.ConditionStatus{
			gatewayv1.RouteConditionAccepted: metav1.ConditionTrue, gatewayv1.RouteConditionResolvedRefs: resolved,
		} {
			said := meta.FindStatusCondition(parent.Conditions, string(kind))
			if said == nil || said.Status != wanted || said.ObservedGeneration != route.Generation {
				return fmt.Errorf("%s, generation %d: %s should be %s: %+v", name, route.Generation, kind, wanted, said)
			}
		}
	}
	return nil
}

// resolved returns whether every backend's Service exists; the suite omits one on purpose.
func (c *cluster) resolved(ctx context.Context, route route) (metav1.ConditionStatus, error) {
	for _, rule := range route.Spec.Rules {
		for _, backend := range rule.BackendRefs {
			key := client.ObjectKey{Namespace: route.Namespace, Name: string(backend.Name)}
			if backend.Namespace != nil {
				key.Namespace = string(*backend.Namespace)
			}
			err := c.Get(ctx, key, &corev1.Service{})
			if client.IgnoreNotFound(err) != nil {
				return "", err
			}
			if err != nil {
				return metav1.ConditionFalse, nil
			}
		}
	}
	return metav1.ConditionTrue, nil
}
